//! Effects of operators, and where a result can be recomputed to the same bytes. Operators declare it from their
//! params, results record it, and `audit` and the reference pages use the same words.

use searchmill_schemas::named;
use serde::{Deserialize, Serialize};

named! {
    /// Whether running an operator twice produces the same result.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Effect {
        /// Same inputs and params: same bytes.
        #[default]
        Pure = "pure",
        /// Same inputs, params and seed: same bytes.
        Seeded = "seeded",
        /// Calls external services (an endpoint); results are kept because they cost money.
        External = "external",
    }
}

/// Where recomputation produces the same bytes, weakest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeatability {
    /// Nowhere: the bytes depend on something outside the key (a server, a program without guarantees).
    Not,
    /// On the same GPU model.
    Device,
    /// On the same kind of processor: its vector unit affects the last bits of sums.
    Processor,
    /// On every machine.
    #[default]
    Everywhere,
}

impl Repeatability {
    /// Returns the description in messages and docs.
    pub fn words(self) -> &'static str {
        match self {
            Self::Not => "not repeatable",
            Self::Device => "exact on one device",
            Self::Processor => "exact on one kind of processor",
            Self::Everywhere => "exact everywhere",
        }
    }
}

impl From<Effect> for Repeatability {
    fn from(effect: Effect) -> Self {
        match effect {
            Effect::Pure | Effect::Seeded => Self::Everywhere,
            Effect::External => Self::Not,
        }
    }
}

/// The repeatability of one result, and what computed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Computed {
    /// The operator's declaration, lowered by what it met at run time.
    pub repeats: Repeatability,
    /// The kind of processor, or the device; empty if the bytes do not depend on it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub on: String,
}

impl Computed {
    /// Returns the declared repeatability, before anything ran.
    pub fn declared(repeats: Repeatability) -> Self {
        let on = if repeats == Repeatability::Processor { processor() } else { String::new() };
        Self { repeats, on }
    }

    /// Returns the weaker of the two.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if other.repeats < self.repeats { other } else { self }
    }

    /// Checks whether this machine's CPU can recompute the same bytes.
    ///
    /// # Errors
    /// Fails with the reason if it cannot.
    pub fn on_this_cpu(&self) -> Result<(), String> {
        match self.repeats {
            Repeatability::Everywhere => Ok(()),
            Repeatability::Processor if self.on == processor() => Ok(()),
            Repeatability::Processor => {
                let words = self.repeats.words();
                Err(format!("it is {words}: it was computed on {}, this machine has {}", self.on, processor()))
            }
            Repeatability::Device => Err(format!("it is {}: it was computed on {}", self.repeats.words(), self.on)),
            Repeatability::Not => Err(format!("it is {}", self.repeats.words())),
        }
    }
}

/// Returns the kind of this machine's processor, as far as it affects bytes: architecture and widest vector unit.
pub fn processor() -> String {
    format!("{} {}", std::env::consts::ARCH, vector_unit())
}

#[cfg(target_arch = "x86_64")]
fn vector_unit() -> &'static str {
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
        "avx512"
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        "avx2"
    } else {
        "sse2"
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn vector_unit() -> &'static str {
    "plain"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weaker_word_counts_and_names_what_computed_it() {
        let everywhere = Computed::declared(Repeatability::Everywhere);
        let gpu = Computed { repeats: Repeatability::Device, on: "GPU (X)".to_owned() };
        let met = everywhere.clone().and(Computed::declared(Repeatability::Processor));
        assert_eq!(met, Computed { repeats: Repeatability::Processor, on: processor() });
        assert_eq!(met.clone().and(gpu.clone()), gpu);
        assert_eq!(gpu.clone().and(met.clone()), gpu);
        assert_eq!(everywhere.on_this_cpu().and(met.on_this_cpu()), Ok(()));
        let elsewhere = Computed { on: "sparc plain".to_owned(), ..met };
        assert!(elsewhere.on_this_cpu().unwrap_err().contains("computed on sparc plain, this machine has"));
        assert!(gpu.on_this_cpu().unwrap_err().contains("exact on one device: it was computed on GPU (X)"));
    }
}
