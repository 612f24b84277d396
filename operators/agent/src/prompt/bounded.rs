//! Templates that make no text longer than a prompt may be.
//!
//! minijinja limits steps (fuel), not bytes: a text that is doubled 60 times takes 60 steps. So the instructions that make
//! long texts of short ones (`~`, `+`, `*`, `join`, `replace`) are replaced by filters that refuse them, and a formatter
//! counts what is printed, also into the texts of `set`, `filter` and macros. The fuel alone limits the literal text that
//! loops print into such texts, and what filters like `indent` and `format` add.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use minijinja::machinery::{
    CompiledTemplate, Instruction, Instructions, TemplateConfig, Vm, WhitespaceConfig, make_string_output,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value};
use minijinja::{
    Environment, Error, ErrorKind, Expression, Output, State, context, default_auto_escape_callback, escape_formatter,
};

/// Longest text in bytes: of a prompt, and of what it is made of.
pub(super) const LONGEST: usize = 64 << 20;
/// Most elements of a list that a template makes.
const MOST: usize = 1 << 24;
/// A filter that is looked up by its name.
const BY_NAME: u8 = !0;

thread_local! {
    /// Bytes that the template in progress has printed.
    static PRINTED: Cell<usize> = const { Cell::new(0) };
}

/// A template with bounded texts.
pub(super) struct Bounded {
    compiled: CompiledTemplate<'static>,
}

impl Bounded {
    /// Compiles a template; `name` is told in errors.
    pub(super) fn new(name: &str, source: &str) -> Result<Self, Error> {
        let config = TemplateConfig {
            syntax_config: SyntaxConfig,
            ws_config: WhitespaceConfig { keep_trailing_newline: true, ..WhitespaceConfig::default() },
            default_auto_escape: Arc::new(default_auto_escape_callback),
        };
        let mut compiled = CompiledTemplate::new(kept(name), kept(source), &config)?;
        bound(&mut compiled.instructions);
        compiled.blocks.values_mut().for_each(bound);
        Ok(Self { compiled })
    }

    pub(super) fn source(&self) -> &str {
        self.compiled.instructions.source()
    }

    /// Renders the template; `environment` was prepared by [`prepare`].
    pub(super) fn render(&self, environment: &Environment<'static>, values: Value) -> Result<String, Error> {
        PRINTED.set(0);
        let CompiledTemplate { instructions, blocks, initial_auto_escape, .. } = &self.compiled;
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        Vm::new(environment).eval(instructions, values, blocks, &mut out, *initial_auto_escape)?;
        Ok(text)
    }
}

/// Keeps a text for the life of the program, as compiled templates borrow theirs. Each different text is kept once.
fn kept(text: &str) -> &'static str {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return known;
    }
    let text: &'static str = Box::leak(text.into());
    texts.insert(text);
    text
}

/// Replaces the instructions that make texts by filters of [`prepare`], which take the same values from the stack.
fn bound(instructions: &mut Instructions<'static>) {
    let places = u32::try_from(instructions.len()).unwrap_or(u32::MAX);
    for place in 0..places {
        let Some(instruction) = instructions.get_mut(place) else { continue };
        let filter = |name, count| Instruction::ApplyFilter(name, count, BY_NAME);
        *instruction = match instruction {
            Instruction::StringConcat => filter(CONCAT, Some(2)),
            Instruction::Add => filter(ADD, Some(2)),
            Instruction::Mul => filter(MUL, Some(2)),
            Instruction::ApplyFilter("join", count, _) => filter(JOIN, *count),
            Instruction::ApplyFilter("replace", count, _) => filter(REPLACE, *count),
            _ => continue,
        };
    }
}

// No template can call filters of these names.
const CONCAT: &str = "~";
const ADD: &str = "+";
const MUL: &str = "*";
const JOIN: &str = "join!";
const REPLACE: &str = "replace!";

/// Adds the filters and the formatter that bound texts, and Python's methods.
pub(super) fn prepare(environment: &mut Environment<'static>) {
    environment.add_filter(CONCAT, |state: &State, left: Value, right: Value| concat(state, &left, &right));
    environment.add_filter(ADD, |left: Value, right: Value| add(&left, &right));
    environment.add_filter(MUL, |left: Value, right: Value| mul(&left, &right));
    environment.add_filter(JOIN, |state: &State, args: Rest<Value>| {
        check_join(args.first(), args.get(1))?;
        state.apply_filter("join", &args)
    });
    environment.add_filter(REPLACE, |state: &State, args: Rest<Value>| {
        check_replace(&args)?;
        state.apply_filter("replace", &args)
    });
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
    for side in [left, right].into_iter().filter(|side| side.is_undefined()) {
        // An error, unless it stands for a missing `else`.
        state.format(side.clone())?;
    }
    sum([size(left)?, size(right)?])?;
    Ok(Value::from(format!("{left}{right}")))
}

fn add(left: &Value, right: &Value) -> Result<Value, Error> {
    static SUM: LazyLock<Option<Expression<'static, 'static>>> = LazyLock::new(|| expression("a + b"));
    match (left.as_str(), right.as_str()) {
        (Some(left), Some(right)) => sum([left.len(), right.len()]).map(drop)?,
        _ => check_list(left.len().unwrap_or(0).checked_add(right.len().unwrap_or(0)))?,
    }
    evaluated(SUM.as_ref(), left, right)
}

fn mul(left: &Value, right: &Value) -> Result<Value, Error> {
    static PRODUCT: LazyLock<Option<Expression<'static, 'static>>> = LazyLock::new(|| expression("a * b"));
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
    let missing = || Error::new(ErrorKind::InvalidOperation, "an operator is missing");
    expression.ok_or_else(missing)?.eval(context! { a, b })
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
    Ok(())
}

fn check_replace(args: &[Value]) -> Result<(), Error> {
    let [text, from, to, ..] = args else { return Ok(()) };
    sum([size(text)?, size(from)?])?;
    let [text, from] = [text, from].map(|value| value.as_str().map_or_else(|| value.to_string().into(), Cow::Borrowed));
    let added = text.matches(&*from).count().checked_mul(size(to)?);
    check_text(added.and_then(|added| added.checked_add(text.len())))
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

fn sum<const N: usize>(sizes: [usize; N]) -> Result<usize, Error> {
    let whole = sizes.into_iter().fold(0, usize::saturating_add);
    check_text(Some(whole)).map(|()| whole)
}

fn check_text(size: Option<usize>) -> Result<(), Error> {
    size.filter(|size| *size <= LONGEST).map(drop).ok_or_else(too_long)
}

fn check_list(length: Option<usize>) -> Result<(), Error> {
    let too_long = || Error::new(ErrorKind::InvalidOperation, format!("a list has more than {MOST} elements"));
    length.filter(|length| *length <= MOST).map(drop).ok_or_else(too_long)
}

fn too_long() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("a text has more than {LONGEST} bytes; the longest prompt has that many"),
    )
}
