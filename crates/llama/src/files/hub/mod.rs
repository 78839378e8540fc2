//! Models by their names on the Hugging Face hub, `org/name`.
//!
//! [`find`] returns the path of a model that was downloaded before, by this crate or by another
//! program that uses the hub's cache, and otherwise downloads it, with the feature `hub`. The
//! variables are those of Python's `huggingface_hub`:
//!
//! | variable | meaning |
//! |---|---|
//! | `HF_HUB_CACHE` | The folder of the cache. Without it `hub` in `HF_HOME`, in `huggingface` of `XDG_CACHE_HOME`, or in `~/.cache/huggingface`. |
//! | `HF_HUB_OFFLINE` | `1`: the cache alone counts. |
//! | `HF_ENDPOINT` | The address of the hub, `https://huggingface.co` without it. |
//! | `HF_TOKEN` | The token for models that not everybody may read. Without it the file `token` in `HF_HOME`, which `hf auth login` writes. |

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
    /// The bytes of the file that are here.
    pub done: u64,
    /// The size of the file in bytes.
    pub total: u64,
}
