//! How deep the elements of an HTML page are nested, by the rules of HTML.

use std::cell::RefCell;
use std::rc::Rc;

use html5ever::tendril::{StrTendril, TendrilSink};
use html5ever::tree_builder::{ElemName, ElementFlags, NodeOrText, QuirksMode, TreeSink};
use html5ever::{Attribute, LocalName, Namespace, ParseOpts, QualName, parse_document};

/// Bytes that are parsed between two looks at the depth.
const STEP: usize = 16 << 10;

/// The document: the first node.
const ROOT: usize = 0;

/// Whether elements of a page are nested deeper than `most`. Parsing ends where they are: its time grows with the depth.
pub(super) fn exceeds(page: &str, most: usize) -> bool {
    let tree = Rc::new(RefCell::new(Tree::default()));
    tree.borrow_mut().node(None, ElementFlags::default());
    let mut options = ParseOpts::default();
    // As the page is read.
    options.tree_builder.scripting_enabled = false;
    let mut parser = parse_document(Sink(Rc::clone(&tree)), options);
    let mut rest = page;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(STEP));
        parser.process(StrTendril::from_slice(piece));
        let seen = tree.borrow();
        // Whether the last node lies deeper than `most`.
        if std::iter::successors(Some(seen.last), |node| seen.nodes[*node].parent).nth(most + 1).is_some() {
            return true;
        }
        rest = after;
    }
    parser.finish();
    tree.borrow().depth() > most
}

/// A node without its text and attributes.
struct Node {
    name: Option<Rc<QualName>>,
    is_integration_point: bool,
    parent: Option<usize>,
    children: Vec<usize>,
    /// What a `<template>` holds.
    content: Option<usize>,
}

#[derive(Default)]
struct Tree {
    nodes: Vec<Node>,
    /// The node that was put into the tree last.
    last: usize,
}

impl Tree {
    fn node(&mut self, name: Option<QualName>, flags: ElementFlags) -> usize {
        let is_integration_point = flags.mathml_annotation_xml_integration_point;
        let name = name.map(Rc::new);
        self.nodes.push(Node { name, is_integration_point, parent: None, children: Vec::new(), content: None });
        let index = self.nodes.len() - 1;
        if flags.template {
            let content = self.node(None, ElementFlags::default());
            self.nodes[index].content = Some(content);
            self.put(index, content);
        }
        index
    }

    fn put(&mut self, parent: usize, child: usize) {
        self.remove(child);
        self.nodes[child].parent = Some(parent);
        self.nodes[parent].children.push(child);
        self.last = child;
    }

    fn remove(&mut self, child: usize) {
        let Some(parent) = self.nodes[child].parent.take() else { return };
        let siblings = &mut self.nodes[parent].children;
        // Most often the last one is moved.
        if let Some(index) = siblings.iter().rposition(|sibling| *sibling == child) {
            siblings.remove(index);
        }
    }

    /// Returns how deep nodes lie below the document.
    fn depth(&self) -> usize {
        let (mut deepest, mut open) = (0, vec![(ROOT, 0)]);
        while let Some((node, depth)) = open.pop() {
            deepest = deepest.max(depth);
            open.extend(self.nodes[node].children.iter().map(|child| (*child, depth + 1)));
        }
        deepest
    }
}

/// Builds the tree as the parser says.
struct Sink(Rc<RefCell<Tree>>);

#[derive(Debug)]
struct Name(Rc<QualName>);

impl ElemName for Name {
    fn ns(&self) -> &Namespace {
        &self.0.ns
    }

    fn local_name(&self) -> &LocalName {
        &self.0.local
    }
}

impl TreeSink for Sink {
    type Handle = usize;
    type Output = ();
    type ElemName<'a> = Name;

    fn finish(self) {}

    fn parse_error(&self, _: std::borrow::Cow<'static, str>) {}

    fn get_document(&self) -> usize {
        ROOT
    }

    fn elem_name<'a>(&'a self, target: &'a usize) -> Name {
        let name = self.0.borrow().nodes[*target].name.clone();
        Name(name.unwrap_or_else(|| Rc::new(QualName::new(None, Namespace::default(), LocalName::default()))))
    }

    fn create_element(&self, name: QualName, _: Vec<Attribute>, flags: ElementFlags) -> usize {
        self.0.borrow_mut().node(Some(name), flags)
    }

    fn create_comment(&self, _: StrTendril) -> usize {
        self.0.borrow_mut().node(None, ElementFlags::default())
    }

    fn create_pi(&self, _: StrTendril, _: StrTendril) -> usize {
        self.0.borrow_mut().node(None, ElementFlags::default())
    }

    fn append(&self, parent: &usize, child: NodeOrText<usize>) {
        if let NodeOrText::AppendNode(child) = child {
            self.0.borrow_mut().put(*parent, child);
        }
    }

    fn append_based_on_parent_node(&self, element: &usize, previous: &usize, child: NodeOrText<usize>) {
        let parent = self.0.borrow().nodes[*element].parent;
        self.append(&parent.unwrap_or(*previous), child);
    }

    fn append_doctype_to_document(&self, _: StrTendril, _: StrTendril, _: StrTendril) {}

    fn get_template_contents(&self, target: &usize) -> usize {
        self.0.borrow().nodes[*target].content.unwrap_or(*target)
    }

    fn same_node(&self, one: &usize, other: &usize) -> bool {
        one == other
    }

    fn set_quirks_mode(&self, _: QuirksMode) {}

    fn append_before_sibling(&self, sibling: &usize, child: NodeOrText<usize>) {
        let parent = self.0.borrow().nodes[*sibling].parent;
        if let Some(parent) = parent {
            self.append(&parent, child);
        }
    }

    fn add_attrs_if_missing(&self, _: &usize, _: Vec<Attribute>) {}

    fn remove_from_parent(&self, target: &usize) {
        self.0.borrow_mut().remove(*target);
    }

    fn reparent_children(&self, node: &usize, parent: &usize) {
        let mut tree = self.0.borrow_mut();
        for child in std::mem::take(&mut tree.nodes[*node].children) {
            tree.nodes[child].parent = Some(*parent);
            tree.nodes[*parent].children.push(child);
        }
    }

    fn is_mathml_annotation_xml_integration_point(&self, handle: &usize) -> bool {
        self.0.borrow().nodes[*handle].is_integration_point
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the smallest limit that a page keeps.
    fn depth(page: &str) -> usize {
        (0..50).find(|most| !exceeds(page, *most)).unwrap()
    }

    #[test]
    fn elements_are_nested_as_browsers_nest_them() {
        let empty = depth("");
        assert_eq!(empty, 2, "the page, and its head and body");
        assert_eq!(depth("<p>one<p>two<br>"), empty + 2);
        assert_eq!(depth("<div><div><i>"), empty + 3);
        assert_eq!(depth(&"<div/>".repeat(9)), empty + 9, "only foreign elements close themselves");
        assert_eq!(depth(&format!("<svg>{}</svg>", "<path d='M0 0'/>".repeat(99))), empty + 2);
        assert_eq!(depth(&format!("<math>{}", "<mi/>".repeat(99))), empty + 2);
        assert_eq!(depth(&format!("<svg><p>{}", "<b/>".repeat(9))), empty + 10, "a paragraph ends a drawing");
        for name in ["script", "style", "textarea", "title", "xmp", "iframe"] {
            assert!(depth(&format!("<body><{name}>{}</{name}>", "<div>".repeat(99))) <= empty + 1, "{name}");
        }
        assert_eq!(depth(&format!("<!--{}-->", "<div>".repeat(99))), empty);
        assert_eq!(depth(&format!("<p title='{}'>", "<div>".repeat(99))), empty + 1);
        assert_eq!(depth(&format!("<textarea><script></textarea>{}", "<div>".repeat(9))), empty + 9);
        assert_eq!(depth(&format!("<p title='<svg>'>{}", "<g/>".repeat(9))), empty + 10);
        assert_eq!(depth("<template><div><p>"), empty + 4, "the content of a template is a tree below it");
    }

    #[test]
    fn parsing_ends_where_a_page_is_too_deep() {
        let bomb = "<b><i>".repeat(4 << 20);
        assert!(exceeds(&bomb, 1000));
    }
}
