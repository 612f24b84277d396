//! Opens a shared store by its URL.
//!
//! Credentials, regions and endpoints come from the environment variables of the clouds' own tools
//! (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME`, …). They belong to
//! the machine and appear in no key, record or message.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path as ObjectPath;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ObjectStore, ObjectStoreScheme, RetryConfig};
use serde::{Deserialize, Serialize};
use url::Url;

use super::flights::Flights;
use super::objects::{Objects, Reply, get, put_first};
use super::segments::Segments;
use super::shared_folder::SharedFolder;
use super::{NAMEPLATE, Remote};
use crate::endpoint::has_user_info;
use crate::store::error::{IoContext, StoreError};
use crate::store::files::if_there;
use crate::store::layout::{STORE_FORMAT, Store};
use crate::store::records::checksum::{seal, sealed_json};

/// Prefixes of environment variables that object stores accept.
const PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];
/// Transfer threads: they mostly wait.
const THREADS: usize = 2;

/// Identifies the shared store of a local cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Nameplate {
    url: String,
    /// The store's random name from its creation.
    store: String,
    /// This cache's name among the caches of the store.
    machine: String,
}

/// Reads the nameplate of a local copy; `None` if it is new.
fn nameplate(root: &Path) -> Result<Option<Nameplate>, StoreError> {
    let path = root.join(NAMEPLATE);
    let Some(text) = if_there(std::fs::read(&path)).context("read", &path)? else { return Ok(None) };
    sealed_json(&text).map(Some).ok_or(StoreError::Nameplate(path))
}

impl Store {
    /// Opens the shared store at a URL with its cache, creating it if needed. Uploads what earlier runs could not
    /// upload.
    ///
    /// # Errors
    /// Fails if the URL is invalid, the store cannot be reached, or the cache belongs to another store.
    pub fn open_shared(url: &str, cache: &Path) -> Result<Self, StoreError> {
        let store = Self::joined(url, cache, true)?;
        store.fetch_collections()?;
        store.send_pending()?;
        store.fetch_runs()?;
        Ok(store)
    }

    /// Opens the shared store at a URL for reading; creates and changes nothing in it.
    ///
    /// # Errors
    /// Fails like [`Store::open_shared`].
    pub fn look_shared(url: &str, cache: &Path) -> Result<Self, StoreError> {
        let store = Self::joined(url, cache, false)?;
        store.fetch_collections()?;
        store.fetch_runs()?;
        Ok(store)
    }

    fn joined(url: &str, cache: &Path, make: bool) -> Result<Self, StoreError> {
        // All that may be wrong with a URL comes before a local copy is made, whose folder has parts of it in its name.
        if has_user_info(url) {
            return Err(StoreError::UserInfo);
        }
        let parsed = Url::parse(url).map_err(|error| StoreError::Url(url.to_owned(), error))?;
        let objects = open(&parsed).map_err(|error| StoreError::Unusable(url.to_owned(), Box::new(error)))?;
        let mut store = Self::open(cache)?;
        let root = store.root().to_owned();
        let nameplate = nameplate(&root)?;
        let known = nameplate.as_ref().map(|known| known.machine.clone());
        let machine = known.unwrap_or_else(|| format!("{:016x}", rand::random::<u64>()));
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(THREADS).thread_name("store").enable_all().build();
        let runtime = runtime.map_err(|error| StoreError::Threads(url.to_owned(), error))?;
        let open = Mutex::default();
        let segments = Arc::new(Segments { objects: Arc::clone(&objects), machine: machine.clone(), open });
        runtime.spawn(Segments::keep_sending(Arc::downgrade(&segments)));
        let mut remote = Remote {
            objects,
            url: url.to_owned(),
            cache: root.clone(),
            machine,
            exists: false,
            runtime: Some(runtime),
            learnt: Mutex::default(),
            segments,
            flights: Flights::default(),
        };
        let found = remote.identify(make)?;
        remote.exists = found.is_some();
        match (found, nameplate) {
            (Some(found), Some(known)) if found != known.store => {
                return Err(StoreError::OtherStore { url: url.to_owned(), cache: root });
            }
            (Some(found), None) => {
                // Before anything of the store comes here: the copy of one must not be taken for another's.
                let nameplate = Nameplate { url: url.to_owned(), store: found, machine: remote.machine.clone() };
                store.write_file(&root.join(NAMEPLATE), &seal(serde_json::to_vec(&nameplate)?))?;
            }
            _ => {}
        }
        store.remote = Some(Arc::new(remote));
        Ok(store)
    }
}

impl Remote {
    /// Returns the store's name; creates the store if `make` is set.
    fn identify(&self, make: bool) -> Result<Option<String>, StoreError> {
        let path = ObjectPath::from("format");
        let found = self.call("open", async {
            let found = get(&self.objects, &path).await?;
            if found.is_some() || !make {
                return Ok(found.map(|found| found.0));
            }
            let text = Bytes::from(format!("{STORE_FORMAT}\n{:016x}\n", rand::random::<u64>()));
            Ok(put_first(&self.objects, &path, text.clone()).await?.or(Some(text)))
        })?;
        let Some(text) = found else { return Ok(None) };
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut lines = text.lines();
        let format = lines.next().unwrap_or_default().trim().to_owned();
        if format == STORE_FORMAT.to_string() {
            return Ok(Some(lines.next().unwrap_or_default().to_owned()));
        }
        Err(StoreError::Format { path: self.url.clone().into(), found: format, wanted: STORE_FORMAT })
    }
}

fn open(url: &Url) -> Reply<Objects> {
    let (scheme, prefix) = ObjectStoreScheme::parse(url)?;
    let mut options: Vec<(String, String)> =
        std::env::vars().filter(|(name, _)| PREFIXES.iter().any(|prefix| name.starts_with(prefix))).collect();
    if options.iter().any(|(name, value)| name.contains("ENDPOINT") && value.starts_with("http://")) {
        // The clients refuse plain HTTP unless they are told.
        options.push(("allow_http".to_owned(), "true".to_owned()));
    }
    // Retries a failed request for some seconds.
    let backoff = BackoffConfig { max_backoff: Duration::from_secs(4), ..BackoffConfig::default() };
    let retry = RetryConfig { max_retries: 6, retry_timeout: Duration::from_secs(40), backoff };
    macro_rules! built {
        ($builder:expr) => {{
            let mut builder = $builder.with_url(url.as_str()).with_retry(retry);
            for (name, value) in options {
                if let Ok(name) = name.to_ascii_lowercase().parse() {
                    builder = builder.with_config(name, value);
                }
            }
            Box::new(builder.build()?) as Box<dyn ObjectStore>
        }};
    }
    let objects = match scheme {
        ObjectStoreScheme::AmazonS3 => built!(AmazonS3Builder::new()),
        ObjectStoreScheme::GoogleCloudStorage => built!(GoogleCloudStorageBuilder::new()),
        ObjectStoreScheme::MicrosoftAzure => built!(MicrosoftAzureBuilder::new()),
        ObjectStoreScheme::Local => Box::new(SharedFolder::new()) as Box<dyn ObjectStore>,
        _ => return Err(super::objects::generic("use s3://, gs://, az:// or file://")),
    };
    Ok(Arc::new(PrefixStore::new(objects, prefix)))
}
