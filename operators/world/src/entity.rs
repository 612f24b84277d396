//! What there is in the world.

/// A kind of entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Person,
    Company,
    City,
    Province,
    School,
    Work,
    Award,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] =
        [Self::Person, Self::Company, Self::City, Self::Province, Self::School, Self::Work, Self::Award];

    /// How many of them each unit of the world has.
    pub(crate) fn per_unit(self) -> u64 {
        match self {
            Self::Person => 8,
            Self::Company | Self::Work => 3,
            Self::City => 2,
            Self::Province | Self::School | Self::Award => 1,
        }
    }

    /// How many documents each of them has; every document states other facts.
    pub(crate) fn aspects(self) -> u64 {
        match self {
            Self::Person | Self::Company => 3,
            Self::Province => 1,
            Self::City | Self::School | Self::Work | Self::Award => 2,
        }
    }

    /// The section of the paper that writes about them.
    pub fn category(self) -> &'static str {
        match self {
            Self::Person => "people",
            Self::Company => "business",
            Self::City | Self::Province => "regional",
            Self::School => "education",
            Self::Work => "entertainment",
            Self::Award => "culture",
        }
    }
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entity {
    pub kind: Kind,
    pub index: u64,
}

impl Entity {
    pub(crate) fn new(kind: Kind, index: u64) -> Self {
        Self { kind, index }
    }
}

/// What a person is known for; decides the posts they can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Leads a company.
    Executive,
    /// Governs a city.
    Mayor,
    /// Made a work.
    Artist,
}

/// People per unit in each role: one executive a company, one mayor a city, one artist a work.
pub(crate) const EXECUTIVES: u64 = 3;
pub(crate) const MAYORS: u64 = 2;
pub(crate) const ARTISTS: u64 = 3;

impl Role {
    /// The role of the person of that index.
    pub(crate) fn of(person: u64) -> Self {
        match person % Kind::Person.per_unit() {
            local if local < EXECUTIVES => Self::Executive,
            local if local < EXECUTIVES + MAYORS => Self::Mayor,
            _ => Self::Artist,
        }
    }

    fn first_and_count(self) -> (u64, u64) {
        match self {
            Self::Executive => (0, EXECUTIVES),
            Self::Mayor => (EXECUTIVES, MAYORS),
            Self::Artist => (EXECUTIVES + MAYORS, ARTISTS),
        }
    }

    /// The person who is number `ordinal` among those of this role.
    pub(crate) fn person(self, ordinal: u64) -> u64 {
        let (first, count) = self.first_and_count();
        ordinal / count * Kind::Person.per_unit() + first + ordinal % count
    }

    /// The inverse of [`Role::person`].
    pub(crate) fn ordinal(self, person: u64) -> u64 {
        let (first, count) = self.first_and_count();
        person / Kind::Person.per_unit() * count + person % Kind::Person.per_unit() - first
    }
}

/// What form a work has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// `novel`.
    pub(crate) noun: &'static str,
    /// `wrote`.
    pub verb: &'static str,
    /// `written`.
    pub(crate) participle: &'static str,
    /// `published`.
    pub(crate) released: &'static str,
    /// `novelist`.
    pub maker: &'static str,
}

/// The forms of works.
pub(crate) const FORMS: [Form; 6] = [
    Form { noun: "novel", verb: "wrote", participle: "written", released: "published", maker: "novelist" },
    Form { noun: "film", verb: "directed", participle: "directed", released: "released", maker: "film director" },
    Form { noun: "opera", verb: "composed", participle: "composed", released: "first performed", maker: "composer" },
    Form { noun: "play", verb: "wrote", participle: "written", released: "first staged", maker: "playwright" },
    Form { noun: "album", verb: "recorded", participle: "recorded", released: "released", maker: "musician" },
    Form { noun: "documentary", verb: "made", participle: "made", released: "released", maker: "documentary maker" },
];
