//! Typed ports: what an operator takes and gives.

use searchmill_schemas::RecordKind;

/// The type of an edge.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PortType {
    /// A table of that record kind.
    Rows(RecordKind),
    /// A folder of that kind.
    Tree(TreeKind),
}

/// What a folder artifact holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TreeKind {
    /// A search index.
    Index,
    /// A model or adapter.
    Model,
    /// A report for people.
    Report,
    /// Files written out (`write`).
    Files,
}

impl TreeKind {
    /// The name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Model => "model",
            Self::Report => "report",
            Self::Files => "files",
        }
    }
}

impl std::fmt::Display for PortType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rows(kind) => write!(f, "{kind} rows"),
            Self::Tree(kind) => f.write_str(kind.name()),
        }
    }
}

/// What an input port accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accept {
    /// Rows of one of these kinds.
    Rows(Vec<RecordKind>),
    /// Rows of any kind.
    AnyRows,
    /// A folder of that kind.
    Tree(TreeKind),
    /// Rows or folders of any kind.
    Any,
}

impl Accept {
    /// Does it accept that type?
    #[must_use]
    pub fn accepts(&self, found: &PortType) -> bool {
        match (self, found) {
            (Self::Any, _) | (Self::AnyRows, PortType::Rows(_)) => true,
            (Self::Rows(kinds), PortType::Rows(kind)) => kinds.contains(kind),
            (Self::Tree(wanted), PortType::Tree(kind)) => wanted == kind,
            _ => false,
        }
    }
}

impl std::fmt::Display for Accept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rows(kinds) => {
                let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
                write!(f, "{} rows", names.join(" or "))
            }
            Self::AnyRows => f.write_str("rows"),
            Self::Tree(kind) => write!(f, "an {}", kind.name()),
            Self::Any => f.write_str("anything"),
        }
    }
}

/// How many artifacts an input port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Exactly one.
    One,
    /// None or one.
    Optional,
    /// One or more, in the order written.
    Many,
    /// None or more.
    AnyNumber,
}

/// One input port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputPort {
    /// Its name in `from: {name: …}`.
    pub name: String,
    /// What it accepts.
    pub accept: Accept,
    /// How many.
    pub arity: Arity,
    /// One line for the reference page.
    pub about: String,
    /// Not bound, it gets the rejects of the external nodes behind that other input.
    pub rejects_of: Option<String>,
}

/// The type of an output port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputType {
    /// Always this.
    Fixed(PortType),
    /// The type that arrives at that input port.
    SameAs(String),
}

/// One output port. Nodes refer to it as `node.port`, and to the first one as `node`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPort {
    /// Its name.
    pub name: String,
    /// Its type.
    pub output: OutputType,
    /// One line for the reference page.
    pub about: String,
}

/// All ports of an operator. The first input is the main one (what `from: node` binds, and what `Map` kernels walk);
/// the first output is the default one. Every operator also has a `rejects` output: never declare it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Inputs, main one first.
    pub inputs: Vec<InputPort>,
    /// Outputs, default one first.
    pub outputs: Vec<OutputPort>,
    /// Set when the user names the inputs (`sql`): each `from:` key becomes a port that accepts this.
    pub named_inputs: Option<Accept>,
    /// Set where no output is more meant than the others (`split`): a reference must name the one it wants.
    pub equal_outputs: bool,
}

impl Ports {
    /// No ports yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// No output is the default one: references must name theirs.
    #[must_use]
    pub fn equal_outputs(mut self) -> Self {
        self.equal_outputs = true;
        self
    }

    fn input(mut self, name: &str, accept: Accept, arity: Arity, about: &str) -> Self {
        self.inputs.push(InputPort { name: name.to_owned(), accept, arity, about: about.to_owned(), rejects_of: None });
        self
    }

    /// The last input, where it is not bound, gets the rejects of the external nodes (rollouts) behind the input `main`.
    #[must_use]
    pub fn or_rejects_of(mut self, main: &str) -> Self {
        if let Some(input) = self.inputs.last_mut() {
            input.rejects_of = Some(main.to_owned());
        }
        self
    }

    /// Adds an input that takes one table of one of these kinds.
    #[must_use]
    pub fn rows_in(self, name: &str, kinds: &[RecordKind], about: &str) -> Self {
        self.input(name, Accept::Rows(kinds.to_vec()), Arity::One, about)
    }

    /// Adds an input that takes one table of any kind.
    #[must_use]
    pub fn any_rows_in(self, name: &str, about: &str) -> Self {
        self.input(name, Accept::AnyRows, Arity::One, about)
    }

    /// Adds an input of that arity.
    #[must_use]
    pub fn input_of(self, name: &str, accept: Accept, arity: Arity, about: &str) -> Self {
        self.input(name, accept, arity, about)
    }

    /// Lets the user name any number of inputs.
    #[must_use]
    pub fn named_inputs(mut self, accept: Accept) -> Self {
        self.named_inputs = Some(accept);
        self
    }

    /// Adds an output table of that kind.
    #[must_use]
    pub fn rows_out(mut self, name: &str, kind: RecordKind, about: &str) -> Self {
        let output = OutputType::Fixed(PortType::Rows(kind));
        self.outputs.push(OutputPort { name: name.to_owned(), output, about: about.to_owned() });
        self
    }

    /// Adds an output table of the kind that arrives at an input.
    #[must_use]
    pub fn same_out(mut self, name: &str, as_input: &str, about: &str) -> Self {
        let output = OutputType::SameAs(as_input.to_owned());
        self.outputs.push(OutputPort { name: name.to_owned(), output, about: about.to_owned() });
        self
    }

    /// Adds an output folder.
    #[must_use]
    pub fn tree_out(mut self, name: &str, kind: TreeKind, about: &str) -> Self {
        let output = OutputType::Fixed(PortType::Tree(kind));
        self.outputs.push(OutputPort { name: name.to_owned(), output, about: about.to_owned() });
        self
    }
}
