//! Text styles: colours, bold and dim.

use anstyle::{AnsiColor, Style};

pub(super) const ERROR: Style = AnsiColor::Red.on_default().bold();
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const STRONG: Style = Style::new().bold();
pub(super) const HELP: Style = AnsiColor::Cyan.on_default();
pub(super) const WARN: Style = AnsiColor::Yellow.on_default();
