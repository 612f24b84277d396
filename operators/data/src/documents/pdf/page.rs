//! Interprets the content of pages (PDF 32000-1, 9): where which strings are shown.

use std::collections::BTreeMap;
use std::rc::Rc;

use lopdf::content::{Content, Operation};
use lopdf::{Dictionary, Document, Object, ObjectId};

use super::super::content::{damaged, too_large};
use super::faults::fault;
use super::font::Font;
use super::layout::{Layout, Point, length};
use crate::source::record::Fault;

/// Forms inside forms.
const MAX_FORMS: usize = 12;
/// Saved graphics states.
const MAX_SAVED: usize = 512;
/// What showing a form costs at least.
const FORM_COST: u64 = 1000;
/// Folders above a page, in the tree of pages.
const MAX_PARENTS: usize = 100;

/// An affine map of six numbers `m`: `x' = m0·x + m2·y + m4`, `y' = m1·x + m3·y + m5`.
#[derive(Clone, Copy)]
struct Matrix([f32; 6]);

impl Matrix {
    const UNIT: Self = Self([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);

    /// First this map, then `next`.
    fn then(self, next: Self) -> Self {
        let (own, m) = (self.0, next.0);
        // The point of each pair, turned by `next`; the last one is also moved.
        let [[x0, y0], [x1, y1], [x2, y2]] = [[own[0], own[1]], [own[2], own[3]], [own[4], own[5]]]
            .map(|[x, y]| [x * m[0] + y * m[2], x * m[1] + y * m[3]]);
        Self([x0, y0, x1, y1, x2 + m[4], y2 + m[5]])
    }

    fn moved(self, x: f32, y: f32) -> Self {
        Self([1.0, 0.0, 0.0, 1.0, x, y]).then(self)
    }

    fn origin(self) -> Point {
        Point { x: self.0[4], y: self.0[5] }
    }
}

/// The part of the graphics state that places text.
#[derive(Clone)]
struct State<'a> {
    page: Matrix,
    font: Option<Rc<Font<'a>>>,
    size: f32,
    letter_spacing: f32,
    word_spacing: f32,
    stretch: f32,
    leading: f32,
}

/// Fonts and forms by name, if there are any.
type Lookup<'a> = Option<&'a Dictionary>;

/// Reads the pages of a document.
pub(super) struct Pages<'a> {
    document: &'a Document,
    limit: u64,
    /// Bytes of content, character maps and widths that may still be unpacked.
    left: u64,
    /// Fonts by the address of their dictionaries.
    fonts: BTreeMap<usize, Rc<Font<'a>>>,
    forms: usize,
}

/// A content stream while it is interpreted.
struct Run<'a> {
    state: State<'a>,
    saved: Vec<State<'a>>,
    text: Matrix,
    line: Matrix,
}

impl<'a> Pages<'a> {
    pub(super) fn new(document: &'a Document, limit: u64) -> Self {
        Self { document, limit, left: 4 * limit, fonts: BTreeMap::new(), forms: 0 }
    }

    /// Returns the text of a page.
    pub(super) fn text(&mut self, page: ObjectId) -> Result<String, Fault> {
        let most = (self.limit / 2).min(self.left);
        let content = self.document.get_page_content_with_limit(page, most as usize);
        let content = content.map_err(|error| fault(&error, self.limit))?;
        self.pay(content.len() as u64)?;
        let mut layout = Layout::default();
        let resources = self.resources(page);
        self.run(&content, resources, Matrix::UNIT, &mut layout)?;
        Ok(layout.finish())
    }

    fn pay(&mut self, bytes: u64) -> Result<(), Fault> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| Fault {
            message: format!("its pages unpack to more than {} bytes; raise `max_bytes` to read it", 4 * self.limit),
            ..too_large("", 0)
        })?;
        Ok(())
    }

    /// Returns the resources of a page, which may be those of a folder above it.
    fn resources(&self, page: ObjectId) -> Lookup<'a> {
        let mut node = self.document.get_dictionary(page).ok()?;
        // The tree of a damaged file may contain itself.
        for _ in 0..MAX_PARENTS {
            if let Ok(found) = node.get_deref(b"Resources", self.document).and_then(Object::as_dict) {
                return Some(found);
            }
            node = node.get_deref(b"Parent", self.document).and_then(Object::as_dict).ok()?;
        }
        None
    }

    fn resource(&self, resources: Lookup<'a>, category: &[u8], name: &Object) -> Option<&'a Object> {
        let category = resources?.get_deref(category, self.document).and_then(Object::as_dict).ok()?;
        category.get_deref(name.as_name().ok()?, self.document).ok()
    }

    fn font(&mut self, resources: Lookup<'a>, name: &Object) -> Result<Option<Rc<Font<'a>>>, Fault> {
        let Some(dictionary) = self.resource(resources, b"Font", name).and_then(|font| font.as_dict().ok()) else {
            return Ok(None);
        };
        let address = std::ptr::from_ref(dictionary) as usize;
        if let Some(known) = self.fonts.get(&address) {
            return Ok(Some(Rc::clone(known)));
        }
        let font = Rc::new(Font::new(self.document, dictionary, self.left).map_err(|error| fault(&error, self.limit))?);
        self.pay(font.cost)?;
        self.fonts.insert(address, Rc::clone(&font));
        Ok(Some(font))
    }

    fn run(&mut self, content: &[u8], resources: Lookup<'a>, page: Matrix, layout: &mut Layout) -> Result<(), Fault> {
        let state =
            State { page, font: None, size: 1.0, letter_spacing: 0.0, word_spacing: 0.0, stretch: 1.0, leading: 0.0 };
        let mut run = Run { state, saved: Vec::new(), text: Matrix::UNIT, line: Matrix::UNIT };
        for operation in Content::decode_iter(content) {
            // What precedes the damage is shown.
            let Ok(operation) = operation else { break };
            match operation.operator.as_str() {
                "Tf" => {
                    if let [name, size] = operation.operands.as_slice() {
                        run.state.font = self.font(resources, name)?;
                        run.state.size = size.as_float().unwrap_or(1.0);
                    }
                }
                "Do" => self.form(&operation.operands, resources, run.state.page, layout)?,
                _ => run.operate(&operation, layout),
            }
            // A form may be shown many times.
            if layout.len() as u64 > self.limit {
                return Err(too_large("the text of a page", self.limit));
            }
        }
        Ok(())
    }

    /// Shows a form. Images show no text.
    fn form(&mut self, name: &[Object], resources: Lookup<'a>, page: Matrix, layout: &mut Layout) -> Result<(), Fault> {
        let found = name.first().and_then(|name| self.resource(resources, b"XObject", name));
        let Some(form) = found.and_then(|object| object.as_stream().ok()) else { return Ok(()) };
        if !form.dict.get(b"Subtype").and_then(Object::as_name).is_ok_and(|name| name == b"Form") {
            return Ok(());
        }
        if self.forms == MAX_FORMS {
            return Err(damaged(format!("its forms contain each other more than {MAX_FORMS} times")));
        }
        let most = (self.limit / 2).min(self.left) as usize;
        let content = form.get_plain_content_with_limit(most).map_err(|error| fault(&error, self.limit))?;
        self.pay(FORM_COST + content.len() as u64)?;
        let own = form.dict.get_deref(b"Resources", self.document).and_then(Object::as_dict).ok();
        let matrix = form.dict.get_deref(b"Matrix", self.document).and_then(Object::as_array).ok();
        let matrix = matrix.and_then(|matrix| numbers(matrix)).map_or(Matrix::UNIT, Matrix);
        // A form may show itself.
        self.forms += 1;
        let shown = self.run(&content, own.or(resources), matrix.then(page), layout);
        self.forms -= 1;
        shown
    }
}

/// Returns exactly `N` numbers.
fn numbers<const N: usize>(operands: &[Object]) -> Option<[f32; N]> {
    let mut found = [0.0; N];
    if operands.len() != N {
        return None;
    }
    for (slot, operand) in found.iter_mut().zip(operands) {
        *slot = operand.as_float().ok().filter(|number| number.is_finite())?;
    }
    Some(found)
}

impl Run<'_> {
    fn operate(&mut self, operation: &Operation, layout: &mut Layout) {
        let operands = operation.operands.as_slice();
        let one = numbers::<1>(operands).map(|[number]| number);
        match operation.operator.as_str() {
            "q" if self.saved.len() < MAX_SAVED => self.saved.push(self.state.clone()),
            "Q" => {
                if let Some(saved) = self.saved.pop() {
                    self.state = saved;
                }
            }
            "cm" => {
                if let Some(matrix) = numbers(operands) {
                    self.state.page = Matrix(matrix).then(self.state.page);
                }
            }
            "BT" => self.start_line(Matrix::UNIT),
            "Tm" => self.start_line(numbers(operands).map_or(self.line, Matrix)),
            "Td" | "TD" => {
                if let Some([x, y]) = numbers(operands) {
                    if operation.operator == "TD" {
                        self.state.leading = -y;
                    }
                    self.start_line(self.line.moved(x, y));
                }
            }
            "T*" => self.next_line(),
            "Tc" => self.state.letter_spacing = one.unwrap_or(0.0),
            "Tw" => self.state.word_spacing = one.unwrap_or(0.0),
            "Tz" => self.state.stretch = one.unwrap_or(100.0) / 100.0,
            "TL" => self.state.leading = one.unwrap_or(0.0),
            "Tj" | "TJ" => self.show_all(operands, layout),
            "'" | "\"" => {
                self.next_line();
                if let [word, letter, _] = operands {
                    self.state.word_spacing = word.as_float().unwrap_or(0.0);
                    self.state.letter_spacing = letter.as_float().unwrap_or(0.0);
                }
                self.show_all(operands.get(operands.len().saturating_sub(1)..).unwrap_or_default(), layout);
            }
            _ => {}
        }
    }

    fn start_line(&mut self, line: Matrix) {
        self.line = line;
        self.text = line;
    }

    fn next_line(&mut self) {
        self.start_line(self.line.moved(0.0, -self.state.leading));
    }

    /// Shows strings; numbers between them move the next one.
    fn show_all(&mut self, operands: &[Object], layout: &mut Layout) {
        for operand in operands {
            match operand {
                Object::String(bytes, _) => self.show(bytes, layout),
                Object::Array(items) => {
                    for item in items {
                        match item {
                            Object::String(bytes, _) => self.show(bytes, layout),
                            other => {
                                let back = other.as_float().unwrap_or(0.0) / 1000.0;
                                self.text = self.text.moved(-back * self.state.size * self.state.stretch, 0.0);
                            }
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn show(&mut self, bytes: &[u8], layout: &mut Layout) {
        let Some(font) = self.state.font.clone() else { return };
        let (width, count, spaces) = font.measure(bytes);
        let State { size, letter_spacing, word_spacing, stretch, .. } = self.state;
        let spacing = count as f32 * letter_spacing + spaces as f32 * word_spacing;
        let start = self.text.then(self.state.page);
        self.text = self.text.moved((width * size + spacing) * stretch, 0.0);
        let end = self.text.then(self.state.page).origin();
        let size = (length(start.0[2], start.0[3]) * size).abs();
        let start = start.origin();
        if [start.x, start.y, end.x, end.y, size].iter().all(|number| number.is_finite()) {
            layout.show(&font.text(bytes), start, end, size);
        }
    }
}
