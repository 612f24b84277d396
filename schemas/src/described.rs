//! Row structs with descriptions: keeps their doc comments for the command line and the reference pages.

/// Description of a row struct and its fields.
pub(crate) struct Described {
    pub(crate) about: &'static str,
    /// Name and description.
    pub(crate) fields: &'static [(&'static str, &'static str)],
}

impl Described {
    /// Returns the description of a field.
    pub(crate) fn field(&self, name: &str) -> String {
        let found = self.fields.iter().find(|(field, _)| *field == name);
        found.map_or_else(String::new, |(_, about)| about.trim().to_owned())
    }
}

/// Declares a row struct unchanged, and stores its doc comments in `DESCRIBED`.
macro_rules! described {
    (
        #[derive($($derive:path),+)]
        $(#[doc = $about:literal])+
        pub struct $name:ident {
            $($(#[doc = $doc:literal])+ pub $field:ident: $type:ty,)+
        }
    ) => {
        #[derive($($derive),+)]
        $(#[doc = $about])+
        pub struct $name {
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        impl $name {
            pub(crate) const DESCRIBED: $crate::described::Described = $crate::described::Described {
                about: concat!($($about),+),
                fields: &[$((stringify!($field), concat!($($doc),+))),+],
            };
        }
    };
}

pub(crate) use described;
