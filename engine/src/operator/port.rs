//! Typed input and output ports.

use searchmill_schemas::{RecordKind, named};

/// The type of an edge.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PortType {
    /// A table of that record kind.
    Rows(RecordKind),
    /// A folder of that kind.
    Tree(TreeKind),
}

named! {
    /// The content of a folder artifact.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum TreeKind {
        /// A search index.
        Index = "index",
        /// A model or adapter.
        Model = "model",
        /// A report for readers.
        Report = "report",
        /// Written files (`write`).
        Files = "files",
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

/// The types that an input port accepts.
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
    /// Whether the port accepts that type.
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
            Self::Tree(TreeKind::Index) => f.write_str("an index"),
            Self::Tree(TreeKind::Files) => f.write_str("files"),
            Self::Tree(kind) => write!(f, "a {}", kind.name()),
            Self::Any => f.write_str("anything"),
        }
    }
}

/// The number of artifacts that an input port takes.
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
    /// Name in `from: {name: …}`.
    pub name: String,
    /// Accepted types.
    pub accept: Accept,
    /// Number of artifacts.
    pub arity: Arity,
    /// One line for the reference page.
    pub about: String,
    /// If left open, the port gets the rejects of the external nodes behind that other input.
    pub rejects_of: Option<String>,
}

/// The type of an output port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputType {
    /// A fixed type.
    Fixed(PortType),
    /// The type bound to that input port.
    SameAs(String),
}

/// One output port. Nodes refer to it as `node.port`, and to the first one as `node`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPort {
    /// Name of the port.
    pub name: String,
    /// Type of the port.
    pub output: OutputType,
    /// One line for the reference page.
    pub about: String,
}

/// All ports of an operator. The first input is the main one: `from: node` binds it, and `Map` kernels process it. The
/// first output is the default one. Every operator also has a `rejects` output: never declare it.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Inputs, main one first.
    pub inputs: Vec<InputPort>,
    /// Outputs, default one first.
    pub outputs: Vec<OutputPort>,
    /// Set if the user names the inputs (`sql`): each `from:` key becomes a port that accepts this.
    pub named_inputs: Option<Accept>,
    /// Set if the operator with named inputs also runs without any.
    pub optional_inputs: bool,
    /// Set if no output is the default (`split`): a reference must name the output.
    pub equal_outputs: bool,
}

impl Ports {
    /// Starts without ports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares that no output is the default: references must name one.
    pub fn equal_outputs(self) -> Self {
        Self { equal_outputs: true, ..self }
    }

    /// Adds an input of that arity.
    pub fn input_of(mut self, name: &str, accept: Accept, arity: Arity, about: &str) -> Self {
        self.inputs.push(InputPort { name: name.to_owned(), accept, arity, about: about.to_owned(), rejects_of: None });
        self
    }

    /// If the last input is not bound, it gets the rejects of the external nodes (rollouts) behind the input `main`.
    pub fn or_rejects_of(mut self, main: &str) -> Self {
        if let Some(input) = self.inputs.last_mut() {
            input.rejects_of = Some(main.to_owned());
        }
        self
    }

    /// Adds an input that takes one table of one of these kinds.
    pub fn rows_in(self, name: &str, kinds: &[RecordKind], about: &str) -> Self {
        self.input_of(name, Accept::Rows(kinds.to_vec()), Arity::One, about)
    }

    /// Adds an input that takes one table of any kind.
    pub fn any_rows_in(self, name: &str, about: &str) -> Self {
        self.input_of(name, Accept::AnyRows, Arity::One, about)
    }

    /// Lets the user name any number of inputs.
    pub fn named_inputs(self, accept: Accept) -> Self {
        Self { named_inputs: Some(accept), ..self }
    }

    /// Lets the operator with named inputs run without any.
    pub fn optional_inputs(self) -> Self {
        Self { optional_inputs: true, ..self }
    }

    fn output(mut self, name: &str, output: OutputType, about: &str) -> Self {
        self.outputs.push(OutputPort { name: name.to_owned(), output, about: about.to_owned() });
        self
    }

    /// Adds an output table of that kind.
    pub fn rows_out(self, name: &str, kind: RecordKind, about: &str) -> Self {
        self.output(name, OutputType::Fixed(PortType::Rows(kind)), about)
    }

    /// Adds an output table of the kind that arrives at an input.
    pub fn same_out(self, name: &str, as_input: &str, about: &str) -> Self {
        self.output(name, OutputType::SameAs(as_input.to_owned()), about)
    }

    /// Adds an output folder.
    pub fn tree_out(self, name: &str, kind: TreeKind, about: &str) -> Self {
        self.output(name, OutputType::Fixed(PortType::Tree(kind)), about)
    }
}
