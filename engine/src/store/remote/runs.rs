//! Run records of a shared store: uploaded when a run ends, fetched when the store is opened. At both times, what is
//! pending is uploaded too.

use std::collections::BTreeSet;

use bytes::Bytes;
use object_store::path::Path;

use super::objects::{self, Objects, Reply};
use super::pending::Pending;
use crate::store::error::{IoContext, StoreError};
use crate::store::files::if_there;
use crate::store::layout::Store;
use crate::store::nofollow;
use crate::store::records::results::RecordState;
use crate::store::records::runs::IMPORTED;

/// Files of a run; the last one marks it as complete.
const FILES: [&str; 4] = [IMPORTED, "events.jsonl", "nodes.jsonl", "run.json"];

fn is_run_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= 64 && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// Reads the files of a run; `None` while its record is missing.
async fn get_run(objects: &Objects, id: String) -> Reply<Option<(String, Vec<(&'static str, Bytes)>)>> {
    let mut files = Vec::with_capacity(FILES.len());
    for name in FILES {
        match objects::get(objects, &Path::from(format!("runs/{id}/{name}"))).await? {
            Some((content, _)) => files.push((name, content)),
            None if name == "run.json" => return Ok(None),
            None => {}
        }
    }
    Ok(Some((id, files)))
}

impl Store {
    /// Uploads the record of a finished run.
    pub(super) fn send_run(&self, id: &str) -> Result<(), StoreError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let mut files = Vec::new();
        for name in FILES {
            let path = self.run_folder(id).join(name);
            if let Some(text) = if_there(std::fs::read(&path)).context("read", &path)? {
                files.push((Path::from(format!("runs/{id}/{name}")), text));
            }
        }
        remote.call("record a run in", async {
            for (path, text) in files {
                objects::put(&remote.objects, &path, text.into()).await?;
            }
            Ok(())
        })
    }

    /// Fetches the records of runs that are missing here.
    pub(super) fn fetch_runs(&self) -> Result<(), StoreError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let here: BTreeSet<String> = self.run_ids().into_iter().collect();
        let fetched = remote.call("read the runs of", async {
            let ids = objects::folders(&remote.objects, &Path::from("runs")).await?;
            let new = ids.into_iter().filter(|id| is_run_id(id) && !here.contains(id));
            // A run without its last file has not ended: it comes with a later look.
            objects::all(new.map(|id| get_run(&remote.objects, id))).await
        })?;
        for (id, files) in fetched.into_iter().flatten() {
            let folder = self.temporary();
            nofollow::create_folder(&folder).context("create", &folder)?;
            for (name, text) in files {
                let path = folder.join(name);
                nofollow::write(&path, text).context("write", &path)?;
            }
            // As a whole: a run with some of its files would count as damaged.
            if let Err(error) = self.rename(&folder, &self.run_folder(&id)) {
                // Another process was faster.
                tracing::debug!("cannot rename {}: {error}", folder.display());
            }
        }
        Ok(())
    }

    /// Uploads everything noted by this process or by dead ones.
    ///
    /// # Errors
    /// Fails if the shared store cannot be reached; the notes stay.
    pub fn send_pending(&self) -> Result<(), StoreError> {
        if self.remote.is_none() {
            return Ok(());
        }
        for what in self.pending() {
            match &what {
                Pending::Result(key) => {
                    if let RecordState::Whole(result) = self.result_here(key) {
                        self.send_result(&result, false)?;
                    }
                }
                Pending::Tombstone(key) => self.send_tombstone(key)?,
                Pending::Artifact(id) => self.send_artifact(id)?,
                Pending::Run(id) => self.send_run(id)?,
                Pending::Floor(base) => self.send_floor(base, self.floor_here(base)?)?,
            }
            // One by one: if the store goes away, the rest stays noted.
            self.forget_pending(&what);
        }
        self.send_segments()
    }

    /// Ends a run: uploads everything that it paid for and its record.
    ///
    /// # Errors
    /// Fails if the shared store cannot be reached; the next run uploads the rest.
    pub fn share_run(&self, id: &str) -> Result<(), StoreError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        // What was paid for first, then the run that says so.
        for segment in remote.segments.all() {
            remote.call("upload cached rows to", async { segment.lock().await.finish(&remote.objects).await })?;
        }
        self.send_run(id)?;
        self.forget_pending(&Pending::Run(id.to_owned()));
        Ok(())
    }
}
