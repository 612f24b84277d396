//! The vocabulary of articles: titles, openings, colour, misleading asides and endings.
//!
//! `{s}` is the subject's full name. `{They}`, `{they}` and `{their}` become a pronoun or a name, whichever is
//! unambiguous. `{trade}` and `{form}` describe the subject. `{person}`, `{company}`, `{city}`, `{school}`, `{work}`
//! and `{award}` are other entities of the world. `{passer}` and `{firm}` are names that belong to no entity, `{n}` is
//! a small number. None of these sentences states a relation of an entity, so none can answer a question.

use super::entity::Kind;

/// Returns titles of articles about an aspect. Every title names the subject, and no two aspects share one.
pub(crate) fn titles(kind: Kind, aspect: u64) -> &'static [&'static str] {
    match (kind, aspect) {
        (Kind::Person, 0) => &["A portrait of {s}", "{s}, up close", "At home with {s}"],
        (Kind::Person, 1) => &["The making of {s}", "How {s} learned the trade", "{s}: the early years"],
        (Kind::Person, _) => &["{s} looks back on a working life", "The career of {s}", "Where {s} made a name"],
        (Kind::Company, 0) => &["How {s} began", "The origins of {s}", "{s}: a company history"],
        (Kind::Company, 1) => &["Inside {s}", "{s} in figures", "A visit to {s}"],
        (Kind::Company, _) => &["Who runs {s}", "{s} and its allies", "At the top of {s}"],
        (Kind::City, 0) => &["{s}: a city guide", "A weekend in {s}", "Getting to know {s}"],
        (Kind::City, _) => &["Town hall report: {s}", "News from the council of {s}", "How {s} is governed"],
        (Kind::Province, _) => &["Across {s}", "{s}: the lie of the land", "A province profile: {s}"],
        (Kind::School, 0) => &["{s} opens its gates", "On the campus of {s}", "The story of {s}"],
        (Kind::School, _) => &["A new term at {s}", "{s} welcomes its students", "Term report: {s}"],
        (Kind::Work, 0) => &["Behind {s}", "{s} revisited", "How {s} came about"],
        (Kind::Work, _) => &["Review: {s}", "The afterlife of {s}", "{s}: who owns it, what inspired it"],
        (Kind::Award, 0) => &["What is the {s}?", "The {s} explained", "A short history of the {s}"],
        (Kind::Award, _) => &["The {s} has been decided", "And the {s} goes to …", "Jury announces the {s}"],
    }
}

/// Returns opening sentences.
pub(crate) fn openings(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Person => &[
            "Few people in the region are as well known as {s}, {a} {trade} by training.",
            "{s} does not give interviews often.",
            "When {s} walks into a room, conversations tend to stop.",
            "There is no shortage of stories about {s}, the {trade}.",
            "{s} met us in a café near the station, {n} minutes early.",
            "For this series we asked {s} about turning points.",
        ],
        Kind::Company => &[
            "{s} rarely makes headlines, and its staff like it that way.",
            "Visitors to {s} are asked to sign a book that is older than most of the machines.",
            "Analysts have been asking questions about {s} for {n} weeks.",
            "A quiet year lies behind {s}.",
            "The annual report of {s} came out this week, and it is a slim one.",
        ],
        Kind::City => &[
            "Anyone who arrives in {s} by train sees the water tower first.",
            "{s} is proud of its market, and rightly so.",
            "It has been a busy season in {s}.",
            "Travellers tend to pass through {s} without stopping, which is a pity.",
            "The old bridge of {s} has been repaired at last.",
        ],
        Kind::Province => &[
            "{s} is better known for its weather than for its politics.",
            "The roads of {s} are long and mostly empty.",
            "Those who grew up in {s} tend to come back.",
        ],
        Kind::School => &[
            "The bells of {s} rang a little earlier than usual this week.",
            "{s} has repainted its library.",
            "A walk through {s} takes about {n} minutes, if nobody stops you to talk.",
            "There were speeches at {s} on Monday.",
        ],
        Kind::Work => &[
            "Some works take their time to find an audience, and {s} is one of them.",
            "The {form} {s} still divides opinion.",
            "Ask {n} people about {s} and you will hear as many verdicts.",
            "{s} is back in the shops and on everybody's lips.",
        ],
        Kind::Award => &[
            "Every year the {s} is the talk of the season.",
            "The {s} has had its share of scandals, and survived them all.",
            "Nobody who follows the arts can avoid the {s}.",
        ],
    }
}

/// Returns sentences without facts.
pub(crate) fn colour(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Person => &[
            "Colleagues describe {their} manner as calm and a little dry.",
            "{They} prefers letters to telephone calls.",
            "Asked about regrets, {they} named {n} and laughed.",
            "In conversation {they} chooses words slowly.",
            "{They} rises early and walks for an hour before breakfast.",
            "The desk, {they} says, has not been tidy for {n} years.",
            "Neighbours speak of {their} patience with a fractious dog.",
            "{They} keeps a notebook for other people's jokes.",
            "Of {their} plans for next year {they} would say nothing.",
            "On Sundays {they} cooks for whoever turns up.",
            "{They} has never owned a car.",
            "Praise makes {their} ears turn red, an old friend told us.",
        ],
        Kind::Company => &[
            "{They} declined to comment on rumours of a price rise.",
            "Suppliers call {their} payment habits exemplary.",
            "The canteen is said to be the best for miles around.",
            "A new works council will be elected in {n} weeks.",
            "{They} has put off the replacement of {their} oldest machines once more.",
            "Orders rose by {n} per cent in the spring and fell again in the autumn.",
            "Trade unions speak of a fair but stubborn opponent.",
            "{They} spent more on repairs than on advertising.",
            "Not every investor is happy with the pace of change.",
            "{They} still prints {their} catalogue on paper.",
        ],
        Kind::City => &[
            "The market is held on the second Saturday of the month.",
            "{They} has {n} bridges, or one more if you count the one that leads nowhere.",
            "Rents have gone up, though less than elsewhere.",
            "The tram runs until midnight.",
            "In winter the fog can last for {n} days.",
            "{They} has planted lime trees along the canal.",
            "The swimming pool reopens after a long repair.",
            "Locals claim that {their} bread is the best in the country.",
            "A competition for a new library drew {n} entries.",
        ],
        Kind::Province => &[
            "The harvest was late this year.",
            "{They} has more lakes than villages, people like to say.",
            "A railway line that closed {n} years ago may be opened again.",
            "Storks nest on nearly every church tower.",
            "{They} votes late and counts slowly.",
            "Walkers praise the paths along the northern ridge.",
        ],
        Kind::School => &[
            "The rowing club trains at dawn.",
            "{They} has put {n} new benches in the park.",
            "Examinations begin in {n} weeks.",
            "The old observatory is open to visitors on Fridays.",
            "{They} lends {their} hall to choirs and chess players.",
            "Lecturers complain about draughts, as they always have.",
            "A mural in the refectory has been cleaned.",
        ],
        Kind::Work => &[
            "The first reviews were lukewarm.",
            "{They} begins with a storm and ends with a breakfast.",
            "A pirated version circulated for {n} weeks.",
            "Scholars have written {n} essays about the last scene alone.",
            "{They} has lost none of {their} charm.",
            "One critic complained about the ending, others about the beginning.",
            "{They} was nearly abandoned twice.",
            "The poster has become a collector's item.",
        ],
        Kind::Award => &[
            "The jury met {n} times behind closed doors.",
            "{They} comes with a modest sum and a heavy bronze owl.",
            "Betting offices had favoured others.",
            "The speeches were short, the dinner was long.",
            "{They} is given for a single work, never for a life.",
            "Tickets were gone within {n} minutes.",
        ],
    }
}

/// Returns asides about the subject that look like an answer but are none.
pub(crate) fn near_misses(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Person => &[
            "{They} gave a talk at {school} last spring.",
            "A summer in {city} is among {their} fondest memories.",
            "{They} and {person} share a fondness for chess.",
            "{They} once turned down an invitation to sit on the board of {company}.",
            "{They} sat on a panel that discussed {work}.",
            "{They} was a guest at a recent gala of the {award}.",
            "A collection of old maps of {city} hangs in {their} study.",
            "Shares in {company}, bought long ago, were sold at a loss.",
            "A photograph shows {person} next to the piano.",
        ],
        Kind::Company => &[
            "{They} supplies {company} with spare parts.",
            "{They} keeps a small warehouse in {city}.",
            "Interns from {school} come every summer.",
            "{They} lost a tender in {city} to a rival.",
            "{person} spoke at {their} last general meeting.",
            "A dispute with {company} over a trademark was settled out of court.",
            "{They} paid for a gala performance of {work}.",
        ],
        Kind::City => &[
            "A night train goes to {city} on Fridays.",
            "{company} looked at a site here and decided against it.",
            "{person} gave a reading in the town hall.",
            "The municipal theatre has put {work} on its programme.",
            "Pupils from {city} came for an exchange.",
            "A football match against {city} ended in a draw.",
        ],
        Kind::Province => &[
            "{company} has applied for a licence to drill a well here.",
            "{person} spent a holiday on the northern ridge.",
            "A cycle path now leads towards {city}.",
            "Students from {school} map the moors every summer.",
        ],
        Kind::School => &[
            "{person} gave a guest lecture in the autumn.",
            "Exchange students come from {school}.",
            "A debating team travelled to {city} and lost.",
            "{company} recruits here every spring.",
            "The drama society is rehearsing a scene from {work}.",
        ],
        Kind::Work => &[
            "Critics have compared {they} with {work}.",
            "{person} is said to own a signed copy.",
            "A touring exhibition on the subject stopped in {city}.",
            "{company} used a line from it in an advertisement.",
            "{person} called it overrated.",
            "It had been mentioned in connection with the {award}.",
        ],
        Kind::Award => &[
            "{work} had been tipped by the bookmakers.",
            "{person} spoke at the dinner.",
            "{company} supplied the flowers.",
            "A reception was held in {city} the week before.",
            "Comparisons with the {award} are unwelcome.",
        ],
    }
}

/// Asides about people and firms that are not entities, worded like real facts.
pub(crate) const BACKGROUND: &[&str] = &[
    "{passer}, who was born in {city}, sees things differently.",
    "{passer}, a graduate of {school}, could not be reached for comment.",
    "In an unrelated matter, {passer} has left {company} after {n} years.",
    "{firm}, which has its headquarters in {city}, reported a small loss.",
    "{passer}, a former adviser to {company}, has published a memoir.",
    "{firm} was founded by {passer} and employs {n} people.",
    "A lawyer from {city}, {passer}, has offered to mediate.",
    "{passer}, who names {person} as an influence, opened an exhibition.",
    "Elsewhere, {passer} was elected to the council of {city}.",
    "{firm} and {company} have ended their cooperation.",
];

/// Closing sentences.
pub(crate) const ENDINGS: &[&str] = &[
    "More on this in the weekend edition.",
    "We will report on further developments.",
    "The next part of this series appears on Thursday.",
    "A longer version of this article is available to subscribers.",
    "Letters to the editor are welcome.",
    "This article was first published in the morning edition.",
    "Additional reporting by our local staff.",
    "Corrections are listed on page two.",
];

/// Items of a digest.
pub(crate) const DIGEST: &[&str] = &[
    "{person} was seen in {city} and signed autographs for an hour.",
    "{company} has denied reports about a strike.",
    "The council of {city} discussed street lighting until late at night.",
    "A rare print of {work} fetched a record price at an auction.",
    "{school} has cancelled its summer ball for lack of interest.",
    "Heavy rain delayed trains between {city} and its neighbours by {n} hours.",
    "{passer}, {n}, won the chess tournament; {person} handed over the cup.",
    "{firm} will open a shop in {city} next month.",
    "An umbrella left behind at the gala of the {award} is still waiting for its owner.",
    "{passer} has been appointed conductor of the youth orchestra.",
    "A cat that had travelled {n} stops by tram was returned to {passer}.",
    "{company} sponsors this year's fun run, which {passer} hopes to win.",
];
