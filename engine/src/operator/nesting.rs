//! How deep SQL is nested. Parsers, planners and DataFusion's evaluation walk an expression by recursion: a chain of 500
//! `AND` is a tree of 500 levels. Text beyond the limit is refused where it is read; if any text is deep, the threads of
//! this process that start later get larger stacks.

use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use crate::diagnostic::Word;

/// Limit of nested operators in one text.
const MOST: usize = 1000;
/// Depth that fits into any stack.
const SHALLOW: usize = 64;
/// Stack of a thread in bytes, and of one that walks the deepest text.
const STACKS: [usize; 2] = [2 << 20, 96 << 20];
/// How to shorten a text that is too deep.
pub const SHORTER: &str = "write `x IN (…)` for a chain of `OR`, or divide it among several nodes";

/// Depth of the deepest text that this process has read.
static DEEPEST: AtomicUsize = AtomicUsize::new(0);

/// Returns the stack size in bytes for threads that may run queries.
pub fn stack_size() -> usize {
    STACKS[usize::from(DEEPEST.load(Ordering::Relaxed) > SHALLOW)]
}

/// Checks how deep an SQL text is nested. Call it before the text is parsed.
///
/// # Errors
/// Fails beyond the limit, with the word at which it is reached.
pub fn check_nesting(text: &str) -> Result<(), (String, Option<Word>)> {
    // Most texts are short, and every run checks all of them.
    if marks(text) <= SHALLOW {
        return Ok(());
    }
    // The parser reports what is no SQL.
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, text).tokenize_with_location() else { return Ok(()) };
    let (mut levels, mut deepest) = (vec![Level::default()], 0);
    for token in tokens {
        // A text may close more parentheses than it opens: the parser reports it.
        let is_inside = levels.len() > 1;
        let Some(level) = levels.last_mut() else { break };
        match token.token {
            Token::LParen | Token::LBracket | Token::LBrace => {
                level.chain += 1;
                levels.push(Level::default());
            }
            Token::RParen | Token::RBracket | Token::RBrace if is_inside => {
                levels.pop();
                // The group is one operand of what is around it.
                if let Some(around) = levels.last_mut() {
                    around.chain = around.chain.saturating_sub(1);
                }
            }
            Token::Comma => level.next_expression(),
            Token::Word(word) => level.word(word.keyword),
            other if is_operator(&other) => level.chain += 1,
            _ => {}
        }
        deepest = deepest.max(levels.iter().map(Level::depth).sum());
        if deepest > MOST {
            let (line, column) = (token.span.start.line as usize, token.span.start.column as usize);
            let message = format!("the SQL is nested more than {MOST} levels deep (limit)");
            return Err((message, word_at(text, line, column)));
        }
    }
    DEEPEST.fetch_max(deepest, Ordering::Relaxed);
    Ok(())
}

/// Returns the number of words and signs in a text: each level takes one.
fn marks(text: &str) -> usize {
    let (mut count, mut in_word) = (0, false);
    for byte in text.bytes() {
        let is_letter = byte.is_ascii_alphabetic();
        count += usize::from(byte.is_ascii_punctuation() || is_letter && !in_word);
        in_word = is_letter;
    }
    count
}

/// Operators between two parentheses.
#[derive(Default)]
struct Level {
    /// `AND` and `OR` since the last comma or clause: each one is a level of the expression.
    logic: usize,
    /// Other operators since the last of these: they bind closer.
    chain: usize,
    /// Set operations and joins: each one is a level of the plan.
    plan: usize,
}

impl Level {
    fn depth(&self) -> usize {
        self.logic + self.chain + self.plan
    }

    fn next_expression(&mut self) {
        *self = Self { logic: 0, chain: 0, plan: self.plan };
    }

    fn word(&mut self, word: Keyword) {
        match word {
            Keyword::AND | Keyword::OR | Keyword::XOR => {
                *self = Self { logic: self.logic + 1, chain: 0, plan: self.plan };
            }
            Keyword::NOT
            | Keyword::IS
            | Keyword::IN
            | Keyword::LIKE
            | Keyword::ILIKE
            | Keyword::SIMILAR
            | Keyword::BETWEEN
            | Keyword::DIV
            | Keyword::COLLATE
            | Keyword::AT => self.chain += 1,
            Keyword::UNION | Keyword::INTERSECT | Keyword::EXCEPT | Keyword::JOIN => {
                *self = Self { logic: 0, chain: 0, plan: self.plan + 1 };
            }
            Keyword::SELECT
            | Keyword::FROM
            | Keyword::WHERE
            | Keyword::HAVING
            | Keyword::BY
            | Keyword::ON
            | Keyword::WHEN
            | Keyword::THEN
            | Keyword::ELSE
            | Keyword::AS => self.next_expression(),
            _ => {}
        }
    }
}

fn is_operator(token: &Token) -> bool {
    !matches!(
        token,
        Token::EOF
            | Token::Word(_)
            | Token::Number(..)
            | Token::Char(_)
            | Token::SingleQuotedString(_)
            | Token::DoubleQuotedString(_)
            | Token::NationalStringLiteral(_)
            | Token::EscapedStringLiteral(_)
            | Token::UnicodeStringLiteral(_)
            | Token::HexStringLiteral(_)
            | Token::DollarQuotedString(_)
            | Token::Comma
            | Token::Period
            | Token::SemiColon
            | Token::Whitespace(_)
            | Token::RParen
            | Token::RBracket
            | Token::RBrace
    )
}

/// Returns the word at a line and column, counted from 1.
pub(crate) fn word_at(text: &str, line: usize, column: usize) -> Option<Word> {
    let start: usize = text.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum();
    let (offset, _) = text.get(start..)?.char_indices().nth(column.checked_sub(1)?)?;
    Word::at(text, start + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(word: &str, times: usize) -> String {
        vec!["a"; times].join(&format!(" {word} "))
    }

    #[test]
    fn long_chains_are_refused_at_the_word_and_wide_texts_are_not() {
        for word in ["AND", "or", "+", "||", "="] {
            assert!(check_nesting(&chain(word, 900)).is_ok(), "{word}");
            let (message, _) = check_nesting(&chain(word, 1100)).expect_err(word);
            assert_eq!(message, "the SQL is nested more than 1000 levels deep (limit)");
        }
        let word = check_nesting(&format!("x\n{}", chain("and", 1100))).expect_err("deep").1;
        assert_eq!(word.map(|word| word.text), Some("and".to_owned()));
        let unions = vec!["SELECT a FROM t"; 1100].join(" UNION ALL ");
        assert!(check_nesting(&unions).is_err());
        assert!(check_nesting(&format!("a{}", "::int".repeat(1100))).is_err());
        for wide in [
            format!("SELECT {} FROM t", vec!["a + b AS c"; 5000].join(", ")),
            format!("a IN ({})", vec!["-1"; 5000].join(", ")),
            vec!["lower(a) || 'x' <> 'b'"; 900].join(" AND "),
            format!("CASE {} ELSE 0 END", vec!["WHEN a = 1 AND b = 2 THEN 3"; 2000].join(" ")),
        ] {
            assert!(check_nesting(&wide).is_ok());
        }
        assert!(check_nesting("'no end").is_ok(), "the parser reports it");
    }

    #[test]
    fn threads_of_deep_texts_have_larger_stacks() {
        check_nesting(&chain("AND", 100)).expect("not too deep");
        assert!(stack_size() > 32 << 20);
    }
}
