//! TEMP
use searchmill_engine::diagnostic::{Diagnostic, SourceMap};
pub fn render(d: &Diagnostic, s: &SourceMap, _c: bool) -> String {
    format!("{}: {} {:?}", d.code, d.message, d.span().map(|x| s.line_col(x.file, x.start)))
}
