//! Finds models by their names on the Hugging Face hub, such as `org/name`.
//!
//! [`find`] returns the path of a model in the hub's cache, which this crate shares with other
//! programs. With the feature `hub`, it downloads a model that is not in the cache. The environment
//! variables are the ones that Python's `huggingface_hub` reads:
//!
//! | variable | meaning |
//! |---|---|
//! | `HF_HUB_CACHE` | The folder of the cache. Without it `hub` in `HF_HOME`, in `huggingface` of `XDG_CACHE_HOME`, or in `~/.cache/huggingface`. |
//! | `HF_HUB_OFFLINE` | With `1`, models are only looked up in the cache and never downloaded. |
//! | `HF_ENDPOINT` | The address of the hub, `https://huggingface.co` without it. |
//! | `HF_TOKEN` | The token for models that not everybody may read. Without it the file that `HF_TOKEN_PATH` names, or `token` in `HF_HOME`, which `hf auth login` writes. |

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
