use mlx_primitives::ops::{self, RowOrder, with_row_order};
use mlx_primitives::{Array, Dtype, Error, Result, concatenate, select};

use super::prompt::row;
use crate::model::Llama;

/// How [`Embedding`] reduces the hidden states of a text to one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Takes the mean over the tokens.
    #[default]
    Mean,
    /// Takes the hidden state of the last token, the only token that attends to the complete text.
    Last,
}

/// The options of [`Llama::embeddings`]. The default is the normalized mean over the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Embedding {
    /// How the hidden states of a text are reduced to one vector.
    pub pooling: Pooling,
    /// Whether to divide each vector by its Euclidean norm, or by 1e-12 if the norm is smaller. The
    /// dot product of two normalized vectors is their cosine similarity.
    pub normalize: bool,
}

impl Default for Embedding {
    fn default() -> Self {
        Self { pooling: Pooling::Mean, normalize: true }
    }
}

impl Embedding {
    /// Pools hidden states `[batch, time, hidden]` to float32 vectors `[batch, hidden]`. Row `i`
    /// uses its first `lengths[i]` positions; later positions are padding and are ignored.
    ///
    /// [`Pooling::Mean`] is `sum(h[i, ..lengths[i]]) / lengths[i]`, computed in float32.
    /// [`Pooling::Last`] is `h[i, lengths[i] - 1]`.
    ///
    /// # Errors
    ///
    /// Returns an error if `hidden` does not have three axes, or if `lengths` does not have one
    /// length from 1 to `time` for each row.
    ///
    /// ```
    /// use mlx_primitives::Array;
    /// use mlx_primitives_llama::decode::{Embedding, Pooling};
    ///
    /// let hidden = Array::from_slice(&[3.0f32, 0.0, 5.0, 8.0, 9.0, 9.0], (1, 3, 2))?;
    /// let mean = Embedding { normalize: false, ..Default::default() };
    /// assert_eq!(mean.pool(&hidden, &[2])?.to_vec::<f32>()?, [4.0, 4.0]);
    /// let last = Embedding { pooling: Pooling::Last, normalize: true };
    /// assert_eq!(last.pool(&hidden, &[1])?.to_vec::<f32>()?, [1.0, 0.0]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn pool(self, hidden: &Array, lengths: &[usize]) -> Result<Array> {
        let (batch, time, features) = hidden.dims3()?;
        let fits = |&length: &usize| (1..=time as usize).contains(&length);
        if lengths.len() != batch as usize || !lengths.iter().all(fits) {
            return Err(Error::argument(
                "embedding",
                format_args!("{batch} lengths from 1 to {time}, got {lengths:?}"),
            ));
        }
        let lengths: Vec<i32> = lengths.iter().map(|&length| length as i32).collect();
        let hidden = hidden.astype(Dtype::Float32)?;
        let pooled = match self.pooling {
            Pooling::Mean => {
                let lengths = Array::from_slice(&lengths, (batch, 1, 1))?;
                let positions = Array::arange::<i32>(0.0, f64::from(time), 1.0)?;
                let seen = positions.reshape((1, time, 1))?.less(&lengths)?;
                let kept = select(&seen, &hidden, &Array::scalar(0.0f32)?)?;
                kept.sum(1)?.divide(lengths.astype(Dtype::Float32)?.squeeze(2)?)?
            }
            Pooling::Last => {
                let last: Vec<i32> = lengths.iter().map(|length| length - 1).collect();
                let last = Array::from_slice(&last, (batch, 1, 1))?;
                let last = last.broadcast_to((batch, 1, features))?;
                hidden.take_along_axis(&last, 1)?.squeeze(1)?
            }
        };
        match self.normalize {
            true => pooled.divide(ops::norm_keepdims(&pooled, -1)?.maximum(1e-12)?),
            false => Ok(pooled),
        }
    }
}

impl Llama {
    /// Computes one float32 vector for each text, `[texts, hidden]`. [`Embedding::pool`] pools the
    /// [hidden](Self::hidden) states of the text.
    ///
    /// The texts run in one batch, padded at their ends to the length of the longest. Kernels add
    /// up terms in the order of [prompts](RowOrder::Prompt). So a text has the same vector alone
    /// and together with others. If the rotary embedding depends on the sequence length, each text
    /// runs separately.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no text, and for a text that is empty, longer than
    /// `max_position_embeddings`, or has tokens outside the vocabulary.
    ///
    /// ```
    /// use mlx_primitives_llama::{Checkpoint, decode::Embedding};
    ///
    /// let demo = Checkpoint::demo()?;
    /// let texts = ["The dog was happy.", "The cat was happy.", "One, two, three!"];
    /// let texts = texts.map(|text| demo.tokenizer.encode(text));
    /// let texts = texts.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// let vectors = demo.llama.embeddings(&texts, Embedding::default())?;
    /// let cosine = vectors.matmul(&vectors.t()?)?.to_vec::<f32>()?;
    /// assert!(cosine[1] > cosine[2]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn embeddings(&self, texts: &[Vec<u32>], options: Embedding) -> Result<Array> {
        if texts.is_empty() {
            return Err(Error::argument("embedding", "at least one text, got none"));
        }
        for text in texts {
            self.check_tokens("embedding", "a text", text)?;
        }
        if self.config().rope_frequencies()?.depends_on_length() {
            let alone = |text: &Vec<u32>| options.pool(&self.read(&row(text)?)?, &[text.len()]);
            let vectors = texts.iter().map(alone).collect::<Result<Vec<_>>>()?;
            return concatenate(&vectors.iter().collect::<Vec<_>>(), 0);
        }
        let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let padded = texts.iter().flat_map(|text| {
            text.iter().copied().chain(std::iter::repeat_n(0, longest - text.len()))
        });
        let padded: Vec<u32> = padded.collect();
        let dim = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        let tokens = Array::from_slice(&padded, (dim(texts.len()), dim(longest)))?;
        options.pool(&self.read(&tokens)?, &lengths)
    }

    /// Computes the hidden states of complete texts.
    fn read(&self, tokens: &Array) -> Result<Array> {
        with_row_order(RowOrder::Prompt, || self.hidden(tokens, &mut self.new_cache()))
    }
}
