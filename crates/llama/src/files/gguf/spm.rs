//! Converts the scores of SentencePiece's tokens to the merges of a byte-pair model.
//!
//! llama.cpp looks for neighboring symbols whose joined text is a token. It merges the pair whose
//! token has the highest score. If scores are equal, it merges the pair that comes first in the
//! text. A byte-pair model merges in the order of a list instead. So the list contains every split
//! of every token into two tokens, in the order of the tokens' scores.
//!
//! Splits into strings that are not tokens are not needed. A symbol of more than one character is
//! always a token. In all vocabularies that SentencePiece trained, every character of a token is a
//! token too.
//!
//! The results differ from llama.cpp only for tokens with equal scores. The byte-pair model then
//! merges the token with the lower ID first, and not the pair that comes first in the text.

use std::collections::HashMap;

use mlx_primitives::Result;

use super::keys::refused;

/// The maximum number of bytes in all splits of all tokens. The largest known vocabularies need
/// only a small part of this number. Splits with this many bytes can be looked up within a second.
const MOST_BYTES: usize = 1 << 28;

/// Returns all splits of every token into two tokens, in the order in which they are merged.
pub(super) fn merges(texts: &[String], scores: &[f64]) -> Result<Vec<(String, String)>> {
    if scores.iter().any(|score| score.is_nan()) {
        return Err(refused("tokenizer.ggml.scores that are numbers, got NaN"));
    }
    let cost: usize = texts.iter().map(|text| text.len().saturating_mul(text.len())).sum();
    if cost > MOST_BYTES {
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        return Err(refused(format_args!(
            "tokens of a few characters, got one of {longest} bytes"
        )));
    }
    let ids: HashMap<&str, usize> =
        texts.iter().enumerate().map(|(id, text)| (text.as_str(), id)).collect();
    let mut order: Vec<usize> = (0..texts.len()).collect();
    // The sort is stable, so tokens with equal scores stay in the order of their IDs.
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let mut merges = Vec::new();
    for id in order {
        let text = texts[id].as_str();
        let divisions = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
        let known = |(left, right)| Some((*ids.get(left)?, *ids.get(right)?));
        let mut divided: Vec<(usize, usize)> = divisions.filter_map(known).collect();
        divided.sort_unstable();
        let named = |(left, right): (usize, usize)| (texts[left].clone(), texts[right].clone());
        merges.extend(divided.into_iter().map(named));
    }
    Ok(merges)
}
