use std::path::Path;

use mlx_primitives::support::files::Replacement;
use mlx_primitives::{Array, Error, Result, eval, io};

use crate::base::{Heads, Share};
use crate::cache::{Cache, CacheKind, Expected};
use crate::model::Llama;

/// The name of the file format in the metadata of a prompt cache's file.
const FORMAT: &str = "mlx-primitives prompt cache 2";

/// A cache and its tokens, in memory or in a safetensors file. A generation that starts from it
/// does not compute the prompt again.
///
/// ```
/// use mlx_primitives_llama::{Checkpoint, Options, PromptCache};
///
/// let checkpoint = Checkpoint::demo()?;
/// let options = Options { max_tokens: 6, ..Options::default() };
/// let prompt = checkpoint.tokenizer.encode("Once upon a time, there was a")?;
/// let mut generation = checkpoint.generate(&prompt, &options)?;
/// let plain: Vec<u32> = generation.by_ref().collect::<Result<_, _>>()?;
/// # let path = std::env::temp_dir().join(format!("doc-cache-{}.safetensors", std::process::id()));
/// generation.into_prompt_cache()?.save(&path)?;
///
/// let cache = PromptCache::load(&path, &checkpoint.llama)?;
/// let again = checkpoint.generate(&prompt, &options)?.with_cache(cache)?;
/// assert_eq!(again.statistics().cached_tokens, prompt.len() - 1);
/// assert_eq!(again.collect::<Result<Vec<u32>, _>>()?, plain);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
#[derive(Clone)]
pub struct PromptCache {
    cache: Cache,
    tokens: Vec<u32>,
    /// The fingerprint of the model that computed the keys and values.
    model: String,
    /// The part of the model that this process holds.
    share: Share,
}

impl PromptCache {
    pub(crate) fn new(model: &Llama, cache: Cache, tokens: Vec<u32>) -> Result<Self> {
        Ok(Self { cache, tokens, model: model.fingerprint()?, share: model.share().clone() })
    }

    /// The index of the first layer in the cache.
    fn first_layer(&self) -> i32 {
        self.share.layers(0).start
    }

    /// The tokens whose keys and values are in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether the layers have the same kinds as the layers of a [new cache](Llama::new_cache_of)
    /// of `kind`.
    ///
    /// # Errors
    ///
    /// Returns an error for a `kind` that [`Llama::new_cache_of`] rejects.
    pub fn is_of(&self, kind: CacheKind, model: &Llama) -> Result<bool> {
        // If the sequence fits in the window, a sliding-window layer may also store all positions.
        let (sliding, full) = (model.new_cache_of(kind)?, model.new_cache_for(kind, 0)?);
        let all = sliding.layers.iter().zip(&full.layers).zip(&self.cache.layers);
        let known = sliding.layers.len() == self.cache.layers.len();
        Ok(known
            && all
                .into_iter()
                .all(|((sliding, full), own)| [sliding.kind(), full.kind()].contains(&own.kind())))
    }

    /// The size of the cache's buffers in bytes.
    pub fn nbytes(&self) -> usize {
        self.cache.nbytes()
    }

    /// Writes the cache to a file, and replaces a file of the same name. The name must end in
    /// `.safetensors`.
    ///
    /// If a model runs on several ranks, every rank calls this method, and rank 0 writes the keys
    /// and values of all ranks. The file can be loaded with any number of ranks.
    ///
    /// Only the owner can read a new file, because it may contain a conversation. A file that is
    /// replaced keeps its permissions. If the path is a link, the link is replaced, not its target.
    ///
    /// The previous file stays until the new one is complete. So a program that reads the path gets
    /// one of the two files in full, also during the write, and after a full disk or a loss of
    /// power.
    ///
    /// # Errors
    ///
    /// Returns an error if the name does not end in `.safetensors`, or if the file cannot be
    /// written. The error names the file.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let file = replacement(path.as_ref())?;
        let (mut arrays, layers) = self.share.whole_cache(self.cache.saved(self.first_layer())?)?;
        eval(arrays.iter().map(|(_, array)| array))?;
        if !self.share.is_first() {
            return Ok(());
        }
        if !self.tokens.is_empty() {
            let count = i32::try_from(self.tokens.len()).unwrap_or(i32::MAX);
            arrays.push(("tokens".to_owned(), Array::from_slice(&self.tokens, [count])?));
        }
        let layers = layers.to_string();
        let text = self.cache.text_len().to_string();
        let metadata =
            [("format", FORMAT), ("model", &self.model), ("layers", &layers), ("text", &text)];
        let arrays = arrays.iter().map(|(name, array)| (name.as_str(), array));
        file.write(|partial| io::save_safetensors(partial, arrays, metadata))?;
        file.commit()
    }

    /// Checks whether [`save`](Self::save) can write to this path.
    ///
    /// # Errors
    ///
    /// Returns the error that `save` would return for the path's name, for a folder that is missing
    /// or read-only, or for a path that is not a regular file.
    ///
    /// ```
    /// use mlx_primitives_llama::PromptCache;
    ///
    /// let error = PromptCache::check_path("/nowhere/prompt.safetensors").unwrap_err();
    /// assert!(error.to_string().starts_with("/nowhere/prompt.safetensors: cannot be written"));
    /// ```
    pub fn check_path(path: impl AsRef<Path>) -> Result<()> {
        replacement(path.as_ref()).map(drop)
    }

    /// Reads a file that [`save`](Self::save) wrote for this model.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is missing, is not a prompt cache, was written for another
    /// model, or has other shapes. The error names the file.
    pub fn load(path: impl AsRef<Path>, model: &Llama) -> Result<Self> {
        let path = path.as_ref();
        Self::read(path, model).map_err(|error| match error.path() {
            Some(_) => error,
            None => Error::file(path, error),
        })
    }

    fn read(path: &Path, model: &Llama) -> Result<Self> {
        let refuse = |expected: std::fmt::Arguments| Err(Error::argument("prompt_cache", expected));
        let mut file = io::load_safetensors(path)?;
        let text = |name: &str| file.metadata.get(name).map(String::as_str).unwrap_or_default();
        if text("format") != FORMAT {
            return refuse(format_args!("a file of format {FORMAT:?}, got {:?}", text("format")));
        }
        let own = model.fingerprint()?;
        if text("model") != own {
            return refuse(format_args!("a cache of model {own}, got one of {}", text("model")));
        }
        let layers = serde_json::from_str(text("layers")).map_err(|e| {
            Error::argument("prompt_cache", format_args!("layers in JSON, got {e}"))
        })?;
        let text_len = text("text");
        let Ok(text_len) = text_len.parse() else {
            return refuse(format_args!("the length of the text, got {text_len:?}"));
        };
        let tokens = match file.arrays.remove("tokens") {
            Some(tokens) => tokens.to_vec::<u32>()?,
            None => Vec::new(),
        };
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= model.vocab()) {
            return refuse(format_args!("tokens below {}, got {token}", model.vocab()));
        }
        for array in file.arrays.values_mut() {
            *array = model.exchange().own_heads(array)?;
        }
        let all = model.config().num_hidden_layers;
        let expected = Expected {
            all: all.unsigned_abs() as usize,
            own: model.exchange().layers(all),
            heads: model.exchange().heads(Heads::from(model.config())),
            dtype: model.dtype(),
        };
        let mut cache = Cache::restored(&mut file.arrays, &layers, &expected)?;
        cache.set_text_len(text_len);
        if cache.len() as usize != tokens.len() {
            return refuse(format_args!("{} tokens, got {}", cache.len(), tokens.len()));
        }
        Ok(Self { cache, tokens, model: own, share: model.share().clone() })
    }

    /// Trims the cache to the longest prefix that it shares with a prompt, without the prompt's
    /// last token. Returns the cache and its number of tokens. A full rotating cache that
    /// cannot remove positions is emptied instead. Returns `None` if a new cache is needed: either
    /// the keys are rotated for another sequence length, or a sliding-window layer stores more
    /// positions than it may see in a sequence of up to `positions`.
    pub(crate) fn for_prompt(
        mut self,
        model: &Llama,
        prompt: &[u32],
        positions: usize,
    ) -> Result<(Option<Cache>, usize)> {
        let own = model.fingerprint()?;
        if own != self.model {
            return Err(Error::argument(
                "prompt_cache",
                format_args!("a cache of model {own}, got one of {}", self.model),
            ));
        }
        if !model.keeps_keys(self.cache.text_len(), prompt.len()) || !self.hides(model, positions) {
            return Ok((None, 0));
        }
        let same = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let common = same.min(prompt.len().saturating_sub(1));
        let extra = i32::try_from(self.tokens.len() - common).unwrap_or(i32::MAX);
        if self.cache.can_trim(extra) {
            self.cache.trim(extra)?;
            return Ok((Some(self.cache), common));
        }
        Ok((Some(self.cache.emptied()?), 0))
    }

    /// Whether every sliding-window layer stores only positions that its window includes, in a
    /// sequence of up to `positions`.
    fn hides(&self, model: &Llama, positions: usize) -> bool {
        model.windows().zip(&self.cache.layers).all(|(window, layer)| {
            match (window, layer.kind()) {
                (None, _) => true,
                (Some(window), CacheKind::Rotating { max_size, .. }) => max_size <= window,
                (Some(window), _) => positions <= window.unsigned_abs() as usize,
            }
        })
    }
}

/// Creates the new, still empty file of a cache.
fn replacement(path: &Path) -> Result<Replacement> {
    if path.extension().is_none_or(|extension| extension != "safetensors") {
        return Err(Error::file(path, "expected a name that ends in .safetensors"));
    }
    Replacement::private(path)
}
