//! Templates with bounded texts: prompts of users and chat templates of models.
//!
//! minijinja limits steps (fuel), not bytes: a text that is doubled 60 times takes 60 steps. So the instructions and
//! filters that make long texts of short values (`~`, `+`, `*`, `join`, `replace`, `indent`, `format`, `tojson` …) are
//! replaced by filters that refuse them, and a formatter counts what is printed, also into the texts of `set`, `filter`
//! and macros. Literal text is printed by the same formatter.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use minijinja::machinery::{
    CompiledTemplate, Instruction, Instructions, TemplateConfig, Vm, WhitespaceConfig, make_string_output,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{
    Environment, Error, ErrorKind, Expression, Output, State, context, default_auto_escape_callback, escape_formatter,
};
use serde::Serialize;

/// Instructions that one template may execute. Bounds endless loops; a loop over 100,000 elements fits.
pub const FUEL: u64 = 10_000_000;
/// Longest text in bytes: of a prompt, and of what it is made of.
pub const LONGEST: usize = 64 << 20;
/// Most bytes of all texts and lists that operators and filters make while a template is rendered.
const MOST_MADE: usize = 16 * LONGEST;
/// Bytes of an element of a list.
const ELEMENT: usize = size_of::<Value>();
/// Largest indentation of `tojson`.
const INDENT: usize = 256;
/// Most elements of a list that a template makes.
const MOST: usize = 1 << 24;
/// A filter that is looked up by its name.
const BY_NAME: u8 = !0;

thread_local! {
    /// Bytes that the template in progress has printed.
    static PRINTED: Cell<usize> = const { Cell::new(0) };
    /// Bytes of the texts and lists that it has made.
    static MADE: Cell<usize> = const { Cell::new(0) };
}

/// A template with bounded texts.
pub struct Bounded {
    compiled: CompiledTemplate<'static>,
}

impl Bounded {
    /// Compiles a template; errors contain `name`.
    ///
    /// # Errors
    /// If it is no template.
    pub fn new(name: &str, source: &str, whitespace: WhitespaceConfig) -> Result<Self, Error> {
        let config = TemplateConfig {
            syntax_config: SyntaxConfig,
            ws_config: whitespace,
            default_auto_escape: Arc::new(default_auto_escape_callback),
        };
        // Blocks have instructions of their own.
        let mut compiled = CompiledTemplate::new(interned(name), interned(source), &config)?;
        compiled.instructions = bound(&compiled.instructions);
        for block in compiled.blocks.values_mut() {
            *block = bound(block);
        }
        Ok(Self { compiled })
    }

    /// Returns its text.
    pub fn source(&self) -> &str {
        self.compiled.instructions.source()
    }

    /// Renders the template; `environment` was prepared by [`prepare`].
    ///
    /// # Errors
    /// If it fails, or makes too much text.
    pub fn render(&self, environment: &Environment<'static>, values: Value) -> Result<String, Error> {
        // A template is rendered on one thread, and none within another.
        PRINTED.set(0);
        MADE.set(0);
        let CompiledTemplate { instructions, blocks, initial_auto_escape, .. } = &self.compiled;
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        Vm::new(environment).eval(instructions, values, blocks, &mut out, *initial_auto_escape)?;
        Ok(text)
    }
}

/// Keeps a text for the life of the program, as compiled templates borrow theirs. Each different text is kept once.
fn interned(text: &str) -> &'static str {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return known;
    }
    let text: &'static str = Box::leak(text.into());
    texts.insert(text);
    text
}

/// Replaces the instructions that make texts by filters of [`prepare`], which take the same values from the stack, and
/// literal text by a constant that is printed.
fn bound(instructions: &Instructions<'static>) -> Instructions<'static> {
    let count = u32::try_from(instructions.len()).unwrap_or(u32::MAX);
    // A literal becomes two instructions, so targets of jumps move.
    let mut moved = Vec::with_capacity(instructions.len() + 1);
    let mut next = 0;
    for index in 0..count {
        moved.push(next);
        next += if matches!(instructions.get(index), Some(Instruction::EmitRaw(_))) { 2 } else { 1 };
    }
    moved.push(next);
    let mut bounded = Instructions::new(instructions.name(), instructions.source());
    for index in 0..count {
        let Some(instruction) = instructions.get(index) else { continue };
        let line = instructions.get_line(index).and_then(|line| u16::try_from(line).ok());
        let bound = match instruction {
            Instruction::EmitRaw(text) => {
                append(&mut bounded, Instruction::LoadConst(Value::from_safe_string((*text).to_owned())), line);
                Instruction::Emit
            }
            Instruction::Iterate(to) => Instruction::Iterate(target(&moved, *to)),
            Instruction::Jump(to) => Instruction::Jump(target(&moved, *to)),
            Instruction::JumpIfFalse(to) => Instruction::JumpIfFalse(target(&moved, *to)),
            Instruction::JumpIfFalseOrPop(to) => Instruction::JumpIfFalseOrPop(target(&moved, *to)),
            Instruction::JumpIfTrueOrPop(to) => Instruction::JumpIfTrueOrPop(target(&moved, *to)),
            Instruction::BuildMacro(name, body, flags) => Instruction::BuildMacro(name, target(&moved, *body), *flags),
            Instruction::StringConcat => Instruction::ApplyFilter(CONCAT, Some(2), BY_NAME),
            Instruction::Add => Instruction::ApplyFilter(ADD, Some(2), BY_NAME),
            Instruction::Mul => Instruction::ApplyFilter(MUL, Some(2), BY_NAME),
            Instruction::ApplyFilter(name, count, id) => match guard(name) {
                Some(guard) => Instruction::ApplyFilter(guard, *count, BY_NAME),
                None => Instruction::ApplyFilter(name, *count, *id),
            },
            other => other.clone(),
        };
        append(&mut bounded, bound, line);
    }
    bounded
}

/// Returns where the target of a jump is now; one behind the last instruction stays there.
fn target(moved: &[u32], to: u32) -> u32 {
    moved.get(to as usize).or(moved.last()).copied().unwrap_or_default()
}

fn append(instructions: &mut Instructions<'static>, instruction: Instruction<'static>, line: Option<u16>) {
    match line {
        Some(line) => instructions.add_with_line(instruction, line),
        None => instructions.add(instruction),
    };
}

// No template can call filters of these names.
const CONCAT: &str = "~";
const ADD: &str = "+";
const MUL: &str = "*";

/// A check of a filter's arguments.
type Check = fn(&[Value]) -> Result<(), Error>;

/// Filters that make texts, the names of the filters that check them first, and the checks.
const GUARDED: [(&str, &str, Check); 15] = [
    ("join", "join!", |args| check_join(args.first(), args.get(1))),
    ("replace", "replace!", check_replace),
    ("indent", "indent!", check_indent),
    ("format", "format!", check_format),
    ("tojson", "tojson!", |args| args.first().map_or(Ok(()), |value| check_json(value, indent_of(args)))),
    ("pprint", "pprint!", check_pretty),
    ("string", "string!", check_written),
    ("upper", "upper!", check_written),
    ("lower", "lower!", check_written),
    ("title", "title!", check_written),
    ("capitalize", "capitalize!", check_written),
    ("trim", "trim!", check_written),
    ("escape", "escape!", check_written),
    ("e", "e!", check_written),
    ("safe", "safe!", check_written),
];

fn guard(filter: &str) -> Option<&'static str> {
    GUARDED.iter().find(|(name, ..)| *name == filter).map(|(_, guard, _)| *guard)
}

/// Adds the filters and the formatter that bound texts, and Python's methods.
pub fn prepare(environment: &mut Environment<'static>) {
    environment.add_filter(CONCAT, |state: &State, left: Value, right: Value| concat(state, &left, &right));
    environment.add_filter(ADD, |left: Value, right: Value| add(&left, &right));
    environment.add_filter(MUL, |left: Value, right: Value| mul(&left, &right));
    for (name, guard, check) in GUARDED {
        environment.add_filter(guard, move |state: &State, args: Rest<Value>| {
            check(&args)?;
            state.apply_filter(name, &args)
        });
    }
    environment.set_formatter(print);
    environment.set_unknown_method_callback(|state, value, method, args| {
        match method {
            "join" => check_join(args.first(), Some(value))?,
            "replace" => check_replace(&[std::slice::from_ref(value), args].concat())?,
            _ => {}
        }
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
    });
}

fn print(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    PRINTED.set(sum([PRINTED.get(), size(value)?])?);
    escape_formatter(out, state, value)
}

fn concat(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    for side in [left, right] {
        if side.is_undefined() {
            // An error, unless it stands for a missing `else`.
            state.format(side.clone())?;
        }
    }
    charge(sum([size(left)?, size(right)?])?)?;
    Ok(Value::from(format!("{left}{right}")))
}

fn add(left: &Value, right: &Value) -> Result<Value, Error> {
    // Numbers and lists are added by the engine itself, in an expression of its own.
    static SUM: LazyLock<Option<Expression<'static, 'static>>> = LazyLock::new(|| expression("a + b"));
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        charge(sum([left.len(), right.len()])?)?;
        return Ok(Value::from([left, right].concat()));
    }
    check_list(left.len().unwrap_or(0).checked_add(right.len().unwrap_or(0)))?;
    evaluated(SUM.as_ref(), left, right)
}

fn mul(left: &Value, right: &Value) -> Result<Value, Error> {
    static PRODUCT: LazyLock<Option<Expression<'static, 'static>>> = LazyLock::new(|| expression("a * b"));
    // Either side may be the number: `3 * "a"`.
    for (repeated, times) in [(left, right), (right, left)] {
        let Some(times) = times.as_usize() else { continue };
        match repeated.as_str() {
            Some(text) => check_text(text.len().checked_mul(times))?,
            None => check_list(repeated.len().unwrap_or(0).checked_mul(times))?,
        }
    }
    evaluated(PRODUCT.as_ref(), left, right)
}

/// Compiles an expression of `a` and `b`, to compute what the engine would.
fn expression(text: &'static str) -> Option<Expression<'static, 'static>> {
    static PLAIN: LazyLock<Environment<'static>> = LazyLock::new(|| {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
        environment
    });
    PLAIN.compile_expression(text).ok()
}

fn evaluated(expression: Option<&Expression<'_, '_>>, a: &Value, b: &Value) -> Result<Value, Error> {
    match expression {
        Some(expression) => expression.eval(context! { a, b }),
        None => Err(Error::new(ErrorKind::InvalidOperation, "an operator is missing")),
    }
}

fn check_join(list: Option<&Value>, separator: Option<&Value>) -> Result<(), Error> {
    let separator = separator.and_then(Value::as_str).map_or(0, str::len);
    let Some(items) = list.filter(|list| list.as_str().is_none()).and_then(|list| list.try_iter().ok()) else {
        return Ok(());
    };
    let mut whole = 0;
    for item in items {
        whole = sum([whole, size(&item)?, separator])?;
    }
    charge(whole)
}

fn check_replace(args: &[Value]) -> Result<(), Error> {
    let [text, from, to, ..] = args else { return Ok(()) };
    sum([size(text)?, size(from)?])?;
    // Numbers are replaced in as texts.
    let [text, from] = [text, from].map(|value| value.as_str().map_or_else(|| value.to_string().into(), Cow::Borrowed));
    let added = text.matches(&*from).count().checked_mul(size(to)?);
    check_text(added.and_then(|added| added.checked_add(text.len())))
}

/// `indent(text, width)`: each line gets as many spaces.
fn check_indent(args: &[Value]) -> Result<(), Error> {
    let Some(text) = args.first() else { return Ok(()) };
    let lines = text.as_str().map_or(1, |text| text.matches('\n').count() + 1);
    let added = indent_of(args).unwrap_or(0).checked_mul(lines);
    check_text(added.and_then(|added| added.checked_add(size(text).ok()?)))
}

/// `format(text, …)`: widths and precisions are numbers in the text, or (`*`, `{}` inside of braces) arguments.
fn check_format(args: &[Value]) -> Result<(), Error> {
    let Some((text, args)) = args.split_first() else { return Ok(()) };
    let mut whole = size(text)?;
    let written = text.as_str().unwrap_or_default();
    for digits in written.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
        whole = sum([whole, digits.parse().unwrap_or(usize::MAX)])?;
    }
    let takes_widths = written.contains('*') || written.match_indices('{').any(|(at, _)| written[..at].contains('{'));
    for value in args {
        let width = if takes_widths { value.as_usize().unwrap_or(0) } else { 0 };
        whole = sum([whole, size(value)?, width])?;
    }
    charge(whole)
}

/// Fails if the JSON of a value, or its indentation, is too long.
///
/// # Errors
/// Why it is refused.
pub fn check_json(value: &Value, indent: Option<usize>) -> Result<(), Error> {
    let spaces = " ".repeat(indent.filter(|indent| *indent <= INDENT).unwrap_or(0));
    if indent.is_some_and(|indent| indent > INDENT) {
        let message = format!("`tojson` indents by at most {INDENT} spaces");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let mut counter = Counter(0);
    let counted = if indent.is_none() {
        serde_json::to_writer(&mut counter, value)
    } else {
        let formatter = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut counter, formatter))
    };
    match counted {
        Err(error) if error.is_io() => Err(too_long()),
        // The filter says what cannot be JSON.
        _ => charge(counter.0),
    }
}

/// Returns the number among the arguments of `indent` and `tojson`.
fn indent_of(args: &[Value]) -> Option<usize> {
    for value in args.iter().skip(1).filter(|value| value.kind() == ValueKind::Number) {
        if let Some(number) = value.as_usize() {
            return Some(number);
        }
    }
    let named = Kwargs::try_from(args.last()?.clone()).ok()?;
    ["width", "indent"].iter().find_map(|name| named.get(name).ok())
}

fn check_pretty(args: &[Value]) -> Result<(), Error> {
    let Some(value) = args.first() else { return Ok(()) };
    let mut counter = Counter(0);
    write!(counter, "{value:#?}").map_err(|_| too_long())?;
    charge(counter.0)
}

/// The value is written as text.
fn check_written(args: &[Value]) -> Result<(), Error> {
    args.first().map_or(Ok(()), |value| charge(size(value)?))
}

/// Counts what an operator or a filter makes.
fn charge(bytes: usize) -> Result<(), Error> {
    MADE.set(MADE.get().saturating_add(bytes));
    if MADE.get() <= MOST_MADE {
        return Ok(());
    }
    let message = format!("the template makes more than {MOST_MADE} bytes of texts and lists");
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Returns the bytes of a value as text.
fn size(value: &Value) -> Result<usize, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.len());
    }
    let mut counter = Counter(0);
    write!(counter, "{value}").map_err(|_| too_long())?;
    Ok(counter.0)
}

/// Counts bytes, up to the longest text.
struct Counter(usize);

impl Write for Counter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = self.0.saturating_add(text.len());
        if self.0 > LONGEST { Err(fmt::Error) } else { Ok(()) }
    }
}

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        if self.0 > LONGEST { Err(std::io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn sum<const N: usize>(sizes: [usize; N]) -> Result<usize, Error> {
    let whole = sizes.into_iter().fold(0, usize::saturating_add);
    if whole <= LONGEST { Ok(whole) } else { Err(too_long()) }
}

/// Checks the size of a text that is made.
fn check_text(size: Option<usize>) -> Result<(), Error> {
    match size {
        Some(size) if size <= LONGEST => charge(size),
        // `None`: more than a number can say.
        Some(_) | None => Err(too_long()),
    }
}

/// Checks the length of a list that is made.
fn check_list(length: Option<usize>) -> Result<(), Error> {
    match length {
        Some(length) if length <= MOST => charge(length * ELEMENT),
        Some(_) | None => Err(Error::new(ErrorKind::InvalidOperation, format!("a list has more than {MOST} elements"))),
    }
}

fn too_long() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("a text has more than {LONGEST} bytes; the longest prompt has that many"),
    )
}
