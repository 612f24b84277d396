//! Kinds of entities in the world.

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
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::Person, Self::Company, Self::City, Self::Province, Self::School, Self::Work, Self::Award];

    /// Returns the number of entities per unit of the world.
    pub(crate) fn per_unit(self) -> u64 {
        match self {
            // One for each post: executives, mayors and artists of a unit.
            Self::Person => 8,
            Self::Company | Self::Work => 3,
            Self::City => 2,
            Self::Province | Self::School | Self::Award => 1,
        }
    }

    /// Returns the number of documents per entity; each states other facts.
    pub(crate) fn aspects(self) -> u64 {
        match self {
            Self::Person | Self::Company => 3,
            Self::Province => 1,
            Self::City | Self::School | Self::Work | Self::Award => 2,
        }
    }

    /// Returns the newspaper section for the kind.
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

/// An entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entity {
    pub kind: Kind,
    pub index: u64,
}

/// The profession of a person; it decides which posts the person can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Leads a company.
    Executive,
    /// Governs a city.
    Mayor,
    /// Created a work.
    Artist,
}

/// People per unit in each role: one executive per company, one mayor per city, one artist per work.
pub(crate) const EXECUTIVES: u64 = 3;
pub(crate) const MAYORS: u64 = 2;
pub(crate) const ARTISTS: u64 = 3;

impl Role {
    /// Returns the role of the person with that index.
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

    /// Returns the person with number `ordinal` among those of this role.
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

/// The form of a work.
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

/// All forms of works.
pub(crate) const FORMS: [Form; 6] = [
    Form { noun: "novel", verb: "wrote", participle: "written", released: "published", maker: "novelist" },
    Form { noun: "film", verb: "directed", participle: "directed", released: "released", maker: "film director" },
    Form { noun: "opera", verb: "composed", participle: "composed", released: "first performed", maker: "composer" },
    Form { noun: "play", verb: "wrote", participle: "written", released: "first staged", maker: "playwright" },
    Form { noun: "album", verb: "recorded", participle: "recorded", released: "released", maker: "musician" },
    Form { noun: "documentary", verb: "made", participle: "made", released: "released", maker: "documentary maker" },
];
