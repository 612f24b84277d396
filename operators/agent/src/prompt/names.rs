//! Filters, tests, functions and methods that a template names.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::machinery::{Instruction, Token, WhitespaceConfig, get_compiled_template, tokenize};
use minijinja::{Environment, ErrorKind, Template};
use searchmill_engine::diagnostic::Word;
use searchmill_engine::operator::ParamIssue;
use searchmill_engine::suggest;

/// Filters to suggest, separated by spaces.
const FILTERS: &str = "\
    abs attr batch bool capitalize chain count d default dictsort e escape first float format groupby indent int \
    items join last length lines list lower map max min pprint reject rejectattr replace reverse round safe select \
    selectattr slice sort split string sum title tojson trim unique upper";
/// Tests to suggest, likewise.
const TESTS: &str = "\
    boolean defined divisibleby endingwith eq escaped even false filter float ge gt in integer iterable le lower lt \
    mapping ne none number odd safe sameas sequence startingwith string true undefined upper";
/// Methods of texts, lists, objects and `loop`, likewise. Other values have none.
const METHODS: &str = "\
    capitalize changed count cycle endswith find format get isalnum isalpha isascii isdigit islower isnumeric \
    isspace isupper items join keys lower lstrip replace rfind rstrip split splitlines startswith strip title upper \
    values";

/// What a name in a template stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Filter,
    Test,
    Function,
    Method,
}

impl Use {
    fn noun(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Test => "test",
            Self::Function => "function",
            Self::Method => "method",
        }
    }

    /// Whether the token at `place` names this use.
    fn stands_at(self, tokens: &[Token<'_>], place: usize) -> bool {
        let before = &tokens[..place];
        match self {
            // `{% filter upper %}` names a filter without a pipe.
            Self::Filter => matches!(before, [.., Token::Pipe | Token::Ident("filter")]),
            Self::Test => matches!(before, [.., Token::Ident("is")] | [.., Token::Ident("is"), Token::Ident("not")]),
            Self::Method => matches!(before, [.., Token::Dot]),
            Self::Function => {
                let is_called = matches!(tokens.get(place + 1), Some(Token::ParenOpen));
                is_called && !matches!(before, [.., Token::Dot | Token::Pipe])
            }
        }
    }
}

/// Returns the functions that a template calls and does not have; `undeclared` are the variables that it does not set.
pub(super) fn unknown_functions(
    environment: &Environment<'_>,
    template: &Template<'_, '_>,
    undeclared: &BTreeSet<String>,
) -> BTreeSet<String> {
    let globals: BTreeSet<&str> = environment.globals().map(|(name, _)| name).collect();
    let mut unknown = BTreeSet::new();
    for (how, name) in used(template) {
        if how == Use::Function && undeclared.contains(&name) && !globals.contains(name.as_str()) {
            unknown.insert(name);
        }
    }
    unknown
}

/// Returns an issue for each filter, test, function and method that no template has. They fail only where a row reaches
/// them, so that a run may pay before it finds them.
pub(super) fn unknown(
    environment: &Environment<'_>,
    template: &Template<'_, '_>,
    undeclared: &BTreeSet<String>,
) -> Vec<ParamIssue> {
    let state = environment.empty_state();
    let functions = unknown_functions(environment, template, undeclared);
    let globals = environment.globals().map(|(name, _)| name).collect::<Vec<_>>().join(" ");
    let mut issues = Vec::new();
    for (how, name) in used(template) {
        let (is_known, names) = match how {
            // Without a value they fail, but an unknown name fails otherwise.
            Use::Filter => {
                let tried = state.apply_filter(&name, &[]);
                (!matches!(tried, Err(error) if error.kind() == ErrorKind::UnknownFilter), FILTERS)
            }
            Use::Test => {
                let tried = state.perform_test(&name, &[]);
                (!matches!(tried, Err(error) if error.kind() == ErrorKind::UnknownTest), TESTS)
            }
            Use::Function => (!functions.contains(&name), globals.as_str()),
            // Which methods exist depends on the value, and only a row has one: the list decides.
            Use::Method => (METHODS.split(' ').any(|method| method == name), METHODS),
        };
        if !is_known {
            let noun = how.noun();
            let issue = ParamIssue::new(template.name(), format!("a prompt has no {noun} `{name}`"));
            let help = suggest(&name, &names.split(' ').collect::<Vec<_>>(), &format!("{noun}s"));
            issues.push(issue.about(word(template, how, &name)).with_help(help));
        }
    }
    issues
}

/// Returns the names that a template applies, calls or tests with, in order.
fn used(template: &Template<'_, '_>) -> Vec<(Use, String)> {
    let compiled = get_compiled_template(template);
    let mut found: BTreeMap<(Use, String), usize> = BTreeMap::new();
    for instructions in std::iter::once(&compiled.instructions).chain(compiled.blocks.values()) {
        for instruction in (0..).map_while(|place| instructions.get(place)) {
            let (how, name) = match instruction {
                Instruction::ApplyFilter(name, ..) => (Use::Filter, *name),
                Instruction::PerformTest(name, ..) => (Use::Test, *name),
                Instruction::CallFunction(name, ..) => (Use::Function, *name),
                Instruction::CallMethod(name, ..) => (Use::Method, *name),
                _ => continue,
            };
            let order = found.len();
            found.entry((how, name.to_owned())).or_insert(order);
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|(_, order)| *order);
    found.into_iter().map(|(name, _)| name).collect()
}

/// Returns the first place where a template uses a name.
fn word(template: &Template<'_, '_>, how: Use, name: &str) -> Option<Word> {
    let source = template.source();
    let syntax = get_compiled_template(template).syntax_config.clone();
    let tokens: Vec<_> = tokenize(source, false, syntax, WhitespaceConfig::default()).map_while(Result::ok).collect();
    let (tokens, spans): (Vec<_>, Vec<_>) = tokens.into_iter().unzip();
    for (index, token) in tokens.iter().enumerate() {
        if matches!(token, Token::Ident(found) if *found == name) && how.stands_at(&tokens, index) {
            return Word::at(source, spans[index].start_offset as usize);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issues(text: &str) -> Vec<String> {
        let mut environment = Environment::new();
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_template("prompt", text).unwrap();
        let template = environment.get_template("prompt").unwrap();
        let undeclared = template.undeclared_variables(false).into_iter().collect();
        let issues = unknown(&environment, &template, &undeclared).into_iter();
        let told = |issue: ParamIssue| {
            let word = issue.word.map_or(String::new(), |word| format!(" @{}", word.before));
            format!("{}{word}: {}", issue.message, issue.help.unwrap_or_default())
        };
        issues.map(told).collect()
    }

    #[test]
    fn suggested_names_exist() {
        for name in FILTERS.split(' ') {
            assert_eq!(issues(&format!("{{{{ x|{name} }}}}")), [""; 0], "{name}");
        }
        for name in TESTS.split(' ') {
            assert_eq!(issues(&format!("{{{{ x is {name} }}}}")), [""; 0], "{name}");
        }
        let environment = {
            let mut environment = Environment::new();
            environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
            environment
        };
        let state = environment.empty_state();
        for name in METHODS.split(' ').filter(|name| !["changed", "cycle"].contains(name)) {
            let values = ["'a'", "[1]", "{'a': 1}"].map(|value| {
                let value = environment.compile_expression(value).unwrap().eval(()).unwrap();
                value.call_method(&state, name, &[])
            });
            let known = |result: &Result<_, minijinja::Error>| {
                result.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::UnknownMethod)
            };
            assert!(values.iter().any(known), "{name}");
        }
    }

    #[test]
    fn unknown_names_are_found_wherever_they_stand() {
        assert_eq!(
            issues("upperr {{ upperr | upperr }}"),
            ["a prompt has no filter `upperr` @2: did you mean `upper`?"]
        );
        assert_eq!(
            issues("{% if false %}{{ x|lowerr|upper }}{% endif %}"),
            ["a prompt has no filter `lowerr` @0: did you mean `lower`?"]
        );
        assert_eq!(
            issues("{% if x is definedd %}{% endif %}"),
            ["a prompt has no test `definedd` @0: did you mean `defined`?"]
        );
        assert_eq!(
            issues("{% if x is not nonee %}{% endif %}"),
            ["a prompt has no test `nonee` @0: did you mean `none`?"]
        );
        assert_eq!(
            issues("{% for i in rangee(3) %}{% endfor %}"),
            ["a prompt has no function `rangee` @0: did you mean `range`?"]
        );
        assert_eq!(issues("{{ x.striip() }}"), ["a prompt has no method `striip` @0: did you mean `strip`?"]);
        assert_eq!(issues("{% filter uper %}a{% endfilter %}").len(), 1);
        assert_eq!(issues("{% block b %}{{ x|uper }}{% endblock %}").len(), 1);
        assert_eq!(issues("{% macro m(x) %}{{ x|uper }}{% endmacro %}{{ m(1) }}").len(), 1);
    }

    #[test]
    fn known_names_are_none_of_them() {
        let fine = [
            "{% macro m(x) %}{{ x }}{{ caller() }}{% endmacro %}{{ m(1) }}{% call m(2) %}a{% endcall %}",
            "{% for a in x recursive %}{{ loop(a) }}{{ loop.cycle('a', 'b') }}{% endfor %}",
            "{{ dict(a=1).a }}{{ 'a'.upper() }}{{ x|map('upper')|list }}{{ x is divisibleby 3 }}",
            "{# x|shout #}{% raw %}{{ x|shout }}{% endraw %}{{ 'x|shout' }}",
        ];
        for text in fine {
            assert_eq!(issues(text), [""; 0], "{text}");
        }
    }
}
