//! Converts the scores of SentencePiece's tokens to the merges of a byte-pair model.
//!
//! llama.cpp looks for neighboring symbols whose joined text is a token. It merges the pair whose
//! token has the highest score, and the first such pair in the text if scores are equal. A
//! byte-pair model merges in the order of a list instead. So the list has every division of every
//! token into two tokens, in the order of the tokens' scores.
//!
//! Divisions into other texts are not needed. A symbol of more than one character is always a
//! token. Every character of a token is a token too, in all vocabularies that SentencePiece
//! trained.
//!
//! The results differ only for tokens of equal scores. The list has a fixed order, so the token
//! with the lower number is merged first, and not the pair that comes first in the text.

use std::collections::HashMap;

use mlx_primitives::Result;

use super::keys::refused;

/// The maximum number of bytes in all divisions of all tokens. It is many times the number for the
/// largest vocabularies, and the divisions can be looked up within a second.
const MOST_BYTES: usize = 1 << 28;

/// The divisions of every token into two tokens, in the order in which they are merged.
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
    // The sort is stable, so tokens of equal scores stay in the order of their numbers.
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
