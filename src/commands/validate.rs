//! `validate`: reports all errors of a pipeline, offline.

use searchmill_engine::{Node, Overrides, Pipeline, Plan, Session};

use crate::args::ValidateArgs;
use crate::display::Terminal;
use crate::exit::{OK, USAGE};

pub(super) fn validate(terminal: &Terminal, session: &Session, args: &ValidateArgs) -> u8 {
    let overrides = Overrides { set: args.set.clone(), params_files: args.params.clone() };
    let mut code = OK;
    for file in &args.files {
        match session.validate(file, &overrides) {
            Ok(Pipeline { plan, .. }) => {
                terminal.valid(file, plan.nodes.len());
                for node in &plan.nodes {
                    if let Some(unseen) = &node.operator.declaration.unseen {
                        terminal.note(&format!("{}: {unseen}", node.id()));
                    }
                    gathered(&plan, node).for_each(|line| terminal.note(&line));
                }
            }
            Err(failure) => {
                // The next files are still checked: all errors are shown together.
                terminal.failure(&failure);
                code = USAGE;
            }
        }
    }
    code
}

/// Says which inputs of a node take all variants of a node with a matrix.
fn gathered(plan: &Plan, node: &Node) -> impl Iterator<Item = String> {
    let makers = node.inputs.iter().map(|input| &plan[input.node]);
    makers.filter(|maker| maker.is_put_between()).map(|maker| {
        let (count, name) = (maker.inputs.len(), maker.id().split(['@', '.']).next().unwrap_or_default());
        format!("{}: takes {count} variants of `{name}` as one table, `{}`", node.id(), maker.id())
    })
}
