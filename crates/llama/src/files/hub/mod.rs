//! Finds models by their names on the Hugging Face hub, such as `org/name`.
//!
//! [`find`] returns the path of a model in the hub's cache, which this crate shares with other
//! programs. With the feature `hub`, it downloads a model that is not in the cache. It reads these
//! environment variables of Python's `huggingface_hub`:
//!
//! - `HF_HUB_CACHE` is the folder of the cache. If it is unset, the cache is the folder `hub` in
//!   `HF_HOME`, in `XDG_CACHE_HOME/huggingface`, or in `~/.cache/huggingface`.
//! - `HF_HUB_OFFLINE` turns off downloads if it is `1`, `on`, `yes` or `true`: models are only
//!   looked up in the cache.
//! - `HF_ENDPOINT` is the address of the hub. If it is unset, this is `https://huggingface.co`.
//! - `HF_TOKEN` is the access token for gated and private models. If it is unset, the token is read
//!   from the file that `HF_TOKEN_PATH` names, or from the file `token` in `HF_HOME`, which
//!   `hf auth login` writes.

mod cache;
#[cfg(feature = "hub")]
mod download;
#[cfg(feature = "hub")]
mod fetch;
mod find;
mod name;

pub use find::find;

/// The state of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Download<'a> {
    /// The name of the file in its repository.
    pub file: &'a str,
    /// The number of bytes of the file that have arrived.
    pub done: u64,
    /// The size of the file in bytes.
    pub total: u64,
}
