//! Values as written in documents, and their other spellings.

use super::entity::{Entity, Kind};
use super::layout::World;

/// A calendar date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    pub year: u64,
    /// From 1.
    pub month: u64,
    /// From 1 to 28, so that every month has it.
    pub day: u64,
}

const MONTHS: &str = "January February March April May June July August September October November December";

impl Date {
    fn month_name(self) -> &'static str {
        MONTHS.split(' ').nth((self.month - 1) as usize).unwrap_or_default()
    }
}

/// The object of a relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Entity(Entity),
    Date(Date),
    Year(u64),
    Count(u64),
    Industry(&'static str),
}

impl Value {
    /// Returns the entity if this is one.
    pub(crate) fn entity(self) -> Option<Entity> {
        match self {
            Self::Entity(entity) => Some(entity),
            _ => None,
        }
    }

    /// Returns a comparable number unless this is an entity or an industry.
    pub fn number(self) -> Option<u64> {
        match self {
            // In the order of days; a difference of two is no number of days.
            Self::Date(date) => Some(date.year * 10_000 + date.month * 100 + date.day),
            Self::Year(number) | Self::Count(number) => Some(number),
            Self::Entity(_) | Self::Industry(_) => None,
        }
    }
}

/// Formats `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl World {
    /// Returns a value as written in documents.
    pub fn written(&self, value: Value) -> String {
        match value {
            Value::Entity(entity) => self.name(entity),
            Value::Date(date) => format!("{} {} {}", date.day, date.month_name(), date.year),
            Value::Year(year) => year.to_string(),
            Value::Count(count) => grouped(count),
            Value::Industry(word) => word.to_owned(),
        }
    }

    /// Returns a value's spellings as answers: the one in documents first.
    pub fn answers(&self, value: Value) -> Vec<String> {
        let mut answers = vec![self.written(value)];
        match value {
            Value::Entity(entity) if matches!(entity.kind, Kind::Person | Kind::Company) => {
                // A family name, or a company without its ending, is right as well.
                answers.push(self.stem_of(entity));
            }
            Value::Date(date) => answers.push(format!("{} {}, {}", date.month_name(), date.day, date.year)),
            Value::Count(count) if count >= 1_000 => answers.push(count.to_string()),
            _ => {}
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!([7, 999, 1_000, 54_321, 1_234_567].map(grouped), ["7", "999", "1,000", "54,321", "1,234,567"]);
    }
}
