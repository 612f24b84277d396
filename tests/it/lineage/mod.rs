//! Where results come from: traces, audits, archives, statements.

mod archives;
mod attest;
mod audits;
mod openlineage;
mod trace;
