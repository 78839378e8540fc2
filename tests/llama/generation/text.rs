//! The text of a generation: its pieces, the stop strings, and the ways to end.

use mlx_primitives_llama::{
    Checkpoint, Options,
    decode::{FinishReason, Piece},
};

use super::{PROMPTS, encoded, options, plain};
use crate::support::{Checked, message};

fn pieces(checkpoint: &Checkpoint, prompt: &[u32], options: &Options) -> Vec<Piece> {
    let generation = checkpoint.generate_text(prompt, options).unwrap();
    generation.map(Result::unwrap).collect()
}

fn text(pieces: &[Piece]) -> String {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}

#[test(simulated = once)]
fn pieces_are_the_tokens_and_their_text() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let tokens = plain(&checkpoint, &prompt);
    let pieces = pieces(&checkpoint, &prompt, &options());
    let (last, others) = pieces.split_last().unwrap();
    let ids: Vec<u32> = others.iter().map(|piece| piece.token.as_ref().unwrap().id).collect();
    assert_eq!(ids, tokens);
    assert_eq!(text(&pieces), checkpoint.tokenizer.decode(&tokens)?);
    assert!(others.iter().all(|piece| piece.finish_reason.is_none()));
    assert!(last.token.is_none() && last.finish_reason.is_some());
    Ok(())
}

#[test(simulated = once)]
fn stop_strings_end_the_text_wherever_they_lie() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let whole = text(&pieces(&checkpoint, &prompt, &options()));
    assert!(whole.len() > 12, "{whole:?}");
    let starts = whole.char_indices().map(|(at, _)| at);
    // Use each of these parts of the text as a stop string. It may be inside a token or span
    // several.
    for start in starts.filter(|at| at % 3 == 0) {
        for length in [1, 2, 5, 11] {
            let Some(part) = whole.get(start..start + length) else { continue };
            let stop = vec!["not there".to_owned(), part.to_owned()];
            let found = pieces(&checkpoint, &prompt, &Options { stop, ..options() });
            assert_eq!(text(&found), whole[..whole.find(part).unwrap()], "{part:?}");
            let last = found.last().unwrap();
            assert_eq!(last.finish_reason, Some(FinishReason::StopString), "{part:?}");
            // A caller cannot take back a piece, so no piece may contain a part of the stop string.
            let shown: usize = found.iter().map(|piece| piece.text.len()).sum();
            assert!(shown <= whole.find(part).unwrap());
        }
    }
    Ok(())
}

#[test(simulated = once)]
fn beginnings_of_stop_strings_are_held_back_and_shown_at_the_end() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let whole = text(&pieces(&checkpoint, &prompt, &options()));
    // The last four bytes of the text could be the start of this stop string. Its rest does not
    // follow.
    let end = &whole[whole.len() - 4..];
    let stop = vec![format!("{end}…")];
    let held = pieces(&checkpoint, &prompt, &Options { stop, ..options() });
    assert_eq!(text(&held), whole);
    let last = held.last().unwrap();
    assert!(last.text.ends_with(end) && last.finish_reason != Some(FinishReason::StopString));
    // A failed match may contain the start of another one, as for the stop string `aab` in `aaab`.
    let comma = whole.find(',').unwrap();
    let stop = vec![whole[comma..comma + 6].to_owned(), whole[comma + 2..comma + 4].to_owned()];
    let found = pieces(&checkpoint, &prompt, &Options { stop, ..options() });
    assert!(text(&found).len() <= comma + 2);

    let empty = Options { stop: vec![String::new()], ..options() };
    assert!(message(checkpoint.generate_text(&prompt, &empty)).contains("one character or more"));
    Ok(())
}

#[test(simulated = once)]
fn texts_can_be_abandoned_at_any_time() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let tokens = plain(&checkpoint, &prompt);
    for taken in [0, 1, 3] {
        let mut generation = checkpoint.generate_text(&prompt, &options())?;
        for piece in generation.by_ref().take(taken) {
            piece?;
        }
        assert_eq!(generation.tokens(), [&prompt[..], &tokens[..taken]].concat());
        assert_eq!(generation.statistics().generated_tokens, taken);
        assert_eq!(generation.finish_reason(), None);
        let cache = generation.into_prompt_cache()?;
        assert!([&prompt[..], &tokens[..taken]].concat().starts_with(cache.tokens()));
    }
    Ok(())
}
