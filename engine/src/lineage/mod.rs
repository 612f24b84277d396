//! Lineage: which results produced an artifact, from what, back to the sources and down to single rows.
//!
//! [`Catalog`] holds every result of a store, [`resolve`] interprets a word of the command line, and [`Closure`] is
//! everything upstream of it, sources first. [`archive`] carries an artifact with its lineage to another store,
//! [`attest`] signs its provenance, [`openlineage`] describes a run to other systems. Nothing here runs a node, and
//! only an import writes to the store.
//!
//! A result record contains its node's preimage (operator, version, params, inputs, sources, seed) and its origin
//! (node, all params, directory, paths of local sources). The results that list an artifact are its makers. If equal
//! bytes have several makers, the maker in the requested run counts, or else the newest one. It must have finished
//! before its user started.
//!
//! **Rows** are traced by id: through nodes that pass a row on (same kind, same id, the `~n` of repeats removed), then
//! through the columns that `RecordKind::parents` declares. A trace reads only the columns it needs, and skips row
//! groups whose statistics exclude an id.
//!
//! **Columns** of relational nodes: `execute::kernels::column_lineage` derives from the logical plan which input
//! columns form an output column, and which filter, join, group and order the rows. The result record contains it.
//!
//! # Audit
//!
//! An audit has three depths. It ends with a list of what it could not check (`Report::unchecked`). These are nodes
//! without a result, collected artifacts, and missing or remote sources. Others are nodes that this machine cannot
//! compute, paid rows and answers missing from the memos, and runs whose records are missing although no `gc` removed
//! them.
//!
//! 1. [`verify`] reads everything behind the target: record checksums, keys against preimages, params against the
//!    origin, the ledger against the records, digests of all files, files that do not belong, sources. The `run.json`
//!    of a finished run contains the number of lines and the digest of `nodes.jsonl`.
//! 2. `execute::audit::replay` recomputes recorded `Pure` and `Seeded` nodes from their recorded inputs and params, in
//!    a store under `tmp/`. It compares digests, then rows. With a sample, `Map` kernels get single rows, and recorded
//!    rows are found by id or parent id.
//! 3. External operators can declare a recheck. It derives everything in a row that is not an external answer, from
//!    inputs and recorded rows alone. Examples are prompts, questions, tool responses and extracted answers. External
//!    results whose record says that they are repeatable are recomputed like the others.
//!
//! An audit recomputes a result only where its recorded repeatability promises equal bytes; otherwise it reports why
//! not. Operators that run programs are recomputed only with `--allow-programs`: a record must not decide what runs.
//!
//! # Archives
//!
//! An archive (`archive`, `store::import`) starts with a list of files and digests. The files follow, laid out as in a
//! store. An import unpacks under `tmp/`, checks, and publishes artifacts before records. It parses every path into a
//! place of a store and writes there, so an archive cannot name another path. Of cached rows, it takes only unknown
//! ones.
//!
//! Imported runs carry a mark (`runs/<id>/imported`). Commands show them by id, but they are never `latest`, do not
//! affect frozen nodes, and do not move later ids. A run dated more than a day ahead is rejected.

mod ancestry;
pub mod archive;
pub mod attest;
mod audit;
mod catalog;
mod closure;
mod compare;
mod descent;
mod diff;
mod findings;
mod instant;
mod lookup;
pub mod openlineage;
mod row_changes;
mod target;
mod trace;
mod output_name;
mod record_audit;

pub use ancestry::{Ancestor, Ancestry, ParentLink, Place, ancestry};
pub use audit::{SourceState, source_state, verify};
pub use catalog::{Catalog, Collected, Port};
pub use closure::{Closure, Step, StepInput};
pub use compare::{Difference, first_difference};
pub(crate) use compare::{difference, file_difference, row_difference};
pub use descent::{Descendants, descent};
pub use diff::{Changed, MetricChange, NodeChange, NotCompared, RunDiff, diff_nodes, diff_runs};
pub use findings::{Finding, NOT_CHECKED, NodeCheck, Report, Severity, Unchecked};
pub use instant::rfc3339;
pub(crate) use lookup::{open as open_part, read_rows, rows_with, selection, texts};
pub use output_name::{Missing, NotFound, came_to_nothing, output_of};
pub use record_audit::{note_checks, note_unfinished, verify_ledger, verify_records};
pub use row_changes::{ColumnChange, TableChange, ValueChange};
pub(crate) use target::name_in;
pub use target::{Target, choices, meant_output, newest_output, no_node, no_output, resolve, run_of};
pub use trace::{Graph, GraphInput, GraphOutput, GraphSource, GraphStep, Roots, downstream, graph, sources, upstream};
