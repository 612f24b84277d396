//! Checks that the files of a crate do not use each other in circles, so that they can be read in an order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use syn::visit::Visit;

/// Sources of the crates, by the folder of the root module.
const SOURCES: [&str; 11] = [
    "schemas/src",
    "engine/src",
    "operators/text/src",
    "operators/kernels/src",
    "operators/world/src",
    "operators/data/src",
    "operators/models/src",
    "operators/retrieval/src",
    "operators/agent/src",
    "operators/src",
    "src",
];

/// A module's path without the crate; empty for the root.
type Module = Vec<String>;

/// Paths that a file uses and exports.
#[derive(Default)]
struct Said {
    /// Current module of the visitor: the file's module plus inline modules.
    here: Module,
    /// Paths used by the file's code, from the root of the crate.
    uses: BTreeSet<Module>,
    /// Re-exports: name and path. `*` for all items of a module.
    exports: Vec<(String, Module)>,
}

impl Said {
    fn of(module: &Module, file: &syn::File) -> Self {
        let mut said = Self { here: module.clone(), ..Self::default() };
        said.visit_file(file);
        said
    }

    /// Returns the path from the root, if it is in this crate: child modules may be named without a prefix.
    fn absolute(&self, path: &[String]) -> Option<Module> {
        let supers = path.iter().take_while(|part| *part == "super").count();
        let (base, rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (self.here.clone(), &path[1..]),
            "super" => (self.here[..self.here.len().checked_sub(supers)?].to_vec(), &path[supers..]),
            _ => (self.here.clone(), path),
        };
        Some(base.into_iter().chain(rest.iter().cloned()).collect())
    }

    fn use_tree(&mut self, tree: &syn::UseTree, before: &[String], given_on: bool) {
        let with = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
        let (path, name) = match tree {
            syn::UseTree::Path(path) => return self.use_tree(&path.tree, &with(&path.ident), given_on),
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|item| self.use_tree(item, before, given_on));
            }
            syn::UseTree::Name(name) => (with(&name.ident), name.ident.to_string()),
            syn::UseTree::Rename(name) => (with(&name.ident), name.rename.to_string()),
            syn::UseTree::Glob(_) => (before.to_vec(), "*".to_owned()),
        };
        let Some(path) = self.absolute(&path) else { return };
        if given_on {
            self.exports.push((name, path));
        } else {
            self.uses.insert(path);
        }
    }
}

fn for_tests(attributes: &[syn::Attribute]) -> bool {
    let test = |attribute: &syn::Attribute| attribute.parse_args::<syn::Ident>().is_ok_and(|name| name == "test");
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg") && test(attribute))
}

impl<'ast> Visit<'ast> for Said {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.content.is_some() && !for_tests(&module.attrs) {
            self.here.push(module.ident.to_string());
            syn::visit::visit_item_mod(self, module);
            self.here.pop();
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !for_tests(&function.attrs) {
            syn::visit::visit_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !for_tests(&item.attrs) {
            self.use_tree(&item.tree, &[], !matches!(item.vis, syn::Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if parts.len() > 1 {
            self.uses.extend(self.absolute(&parts));
        }
        syn::visit::visit_path(self, path);
    }
}

/// Returns the files of a crate by module.
fn modules(source: &Path) -> BTreeMap<Module, String> {
    let mut found = BTreeMap::new();
    for (path, text) in super::tidy::rust_files(&source.display().to_string()) {
        if super::tidy::is_test_file(&path) {
            continue;
        }
        let own = path.strip_prefix(source).expect("below the source").with_extension("");
        let mut module: Module = own.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        let is_root = module.len() == 1 && (module[0] == "lib" || module[0] == "main");
        if is_root || module.last().is_some_and(|last| last == "mod") {
            module.pop();
        }
        found.insert(module, text);
    }
    found
}

/// Returns the module that defines a path, following re-exports.
fn home(path: &[String], said: &BTreeMap<Module, Said>, depth: usize) -> Option<Module> {
    let length = (0..=path.len()).rev().find(|length| said.contains_key(&path[..*length]))?;
    let module = path[..length].to_vec();
    let (Some(name), true) = (path.get(length), depth < 8) else { return Some(module) };
    let exports = &said[&module].exports;
    let named = exports.iter().find(|(known, _)| known == name).map(|(_, path)| path);
    // A module does not own what it re-exports; glob re-exports are ignored.
    named.and_then(|path| home(path, said, depth + 1)).or(Some(module))
}

fn circles(source: &str) -> Vec<BTreeSet<String>> {
    let files = modules(Path::new(source));
    let said: BTreeMap<Module, Said> = files
        .iter()
        .map(|(module, text)| {
            let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{source} {module:?}: {error}"));
            (module.clone(), Said::of(module, &file))
        })
        .collect();
    let mut graph: DiGraphMap<&Module, ()> = DiGraphMap::new();
    for (module, told) in &said {
        for target in told.uses.iter().filter_map(|path| home(path, &said, 0)) {
            if target != *module {
                let (from, _) = said.get_key_value(module).expect("a file");
                let (to, _) = said.get_key_value(&target).expect("a file");
                graph.add_edge(from, to, ());
            }
        }
    }
    let named = |circle: Vec<&Module>| circle.into_iter().map(|module| module.join("::")).collect::<BTreeSet<_>>();
    tarjan_scc(&graph).into_iter().filter(|circle| circle.len() > 1).map(named).collect()
}

#[test]
fn files_of_a_crate_have_an_order() {
    let mut found = String::new();
    for source in SOURCES {
        for circle in circles(source) {
            found += &format!("{source}: {}\n", circle.into_iter().collect::<Vec<_>>().join(", "));
        }
    }
    assert!(found.is_empty(), "files that use each other:\n{found}");
}
