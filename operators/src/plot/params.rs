//! Params of `plot`, and their checks.

use schemars::JsonSchema;
use searchmill_engine::operator::{ParamIssue, Tables};
use serde::{Deserialize, Serialize};

use crate::shared::issues::{refused, unmet};
use crate::shared::relation::{ROWS, check_key, unknown_key};

/// How to draw the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// A bar from 0 to `y` for each value of `x` and `series`.
    #[default]
    Bars,
    /// A line through the rows of each `series`. `x` may be numbers or texts.
    Lines,
    /// A point for each row. `x` may be numbers or texts.
    Scatter,
    /// A cell for each value of `x` and `y`, with the colour of `value`.
    Heatmap,
}

/// Parameters of `plot`. All but the titles name columns or SQL expressions.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct PlotParams {
    /// How to draw the rows (`bars`).
    #[serde(default)]
    pub(crate) kind: Kind,
    /// The horizontal axis. Numbers are sorted, texts keep the order of the rows.
    pub(crate) x: String,
    /// The vertical axis: numbers, or for `heatmap` any values.
    pub(crate) y: String,
    /// What has a colour of its own: at most 8 values.
    #[serde(default)]
    pub(crate) series: Option<String>,
    /// Lower end of an interval around `y`.
    #[serde(default)]
    pub(crate) low: Option<String>,
    /// Upper end of an interval around `y`.
    #[serde(default)]
    pub(crate) high: Option<String>,
    /// The number that a cell of a `heatmap` shows.
    #[serde(default)]
    pub(crate) value: Option<String>,
    /// What has a panel of its own: at most 24 values.
    #[serde(default)]
    pub(crate) facet: Option<String>,
    /// Heading.
    #[serde(default)]
    pub(crate) title: String,
    /// Text below the horizontal axis (default: `x`).
    #[serde(default)]
    pub(crate) x_title: Option<String>,
    /// Text beside the vertical axis (default: `y`).
    #[serde(default)]
    pub(crate) y_title: Option<String>,
}

impl PlotParams {
    /// The params that name columns, with their names.
    pub(super) fn keys(&self) -> Vec<(&'static str, &str)> {
        let mut keys = vec![("x", self.x.as_str()), ("y", self.y.as_str())];
        keys.extend(self.series.iter().map(|key| ("series", key.as_str())));
        keys.extend(self.low.iter().map(|key| ("low", key.as_str())));
        keys.extend(self.high.iter().map(|key| ("high", key.as_str())));
        keys.extend(self.value.iter().map(|key| ("value", key.as_str())));
        keys.extend(self.facet.iter().map(|key| ("facet", key.as_str())));
        keys
    }

    pub(super) fn issues(&self) -> Vec<ParamIssue> {
        let mut issues: Vec<_> = self.keys().into_iter().filter_map(|(name, key)| check_key(name, key)).collect();
        let is_map = self.kind == Kind::Heatmap;
        let has_number = !is_map || self.value.is_some();
        issues.extend(unmet(&[(has_number, "value", "a heat map needs the number that its cells show")]));
        let (no_place, help) = ("a heat map has no place for it", "remove it, or use `facet`");
        issues.extend(refused(&[
            (!is_map && self.value.is_some(), "value", "belongs to `kind: heatmap`", "name the number in `y`"),
            (is_map && self.series.is_some(), "series", no_place, help),
            (is_map && self.low.is_some(), "low", no_place, help),
            (is_map && self.high.is_some(), "high", no_place, help),
        ]));
        issues.extend(unmet(&[
            (self.low.is_none() || self.high.is_some(), "low", "an interval has two ends: name `high` too"),
            (self.high.is_none() || self.low.is_some(), "high", "an interval has two ends: name `low` too"),
        ]));
        issues
    }

    pub(super) fn column_issues(&self, tables: &Tables) -> Vec<ParamIssue> {
        let Some(schema) = tables.get(ROWS) else { return Vec::new() };
        self.keys().into_iter().filter_map(|(name, key)| unknown_key(schema, name, key)).collect()
    }

    pub(super) fn x_title(&self) -> &str {
        self.x_title.as_deref().unwrap_or_else(|| unquoted(&self.x))
    }

    pub(super) fn y_title(&self) -> &str {
        self.y_title.as_deref().unwrap_or_else(|| unquoted(&self.y))
    }
}

/// Returns a key as a heading: `"group"` without its quotation marks.
pub(super) fn unquoted(key: &str) -> &str {
    match key.strip_prefix('"').and_then(|key| key.strip_suffix('"')) {
        // An expression such as `"a" || "b"` stays as it is.
        Some(name) if !name.contains('"') => name,
        _ => key,
    }
}
