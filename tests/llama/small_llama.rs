//! The Llama model in `examples/llama.rs` generates the same tokens as mlx-lm.

#[allow(dead_code, reason = "main belongs to the example alone")]
#[path = "../../examples/llama.rs"]
mod example;

use std::path::Path;

use crate::support::models::{DEMO, fixture, ids};
use crate::support::{Checked, fewer_if_simulated};

#[test(simulated = once)]
fn its_tokens_are_mlx_lms() -> Checked {
    let llama = example::Llama::load(Path::new(DEMO))?;
    let limit = fewer_if_simulated("tokens that follow mlx-lm's", 96, 8) as usize;
    let prompts = fewer_if_simulated("prompts that follow mlx-lm's", 8, 2) as usize;
    let fixture = fixture();
    let end = fixture["eos_token_id"].as_u64().expect("an end token") as u32;
    for entry in fixture["prompts"].as_array().expect("a list").iter().take(prompts) {
        let mut ours = Vec::new();
        llama.generate(&ids(&entry["prompt_ids"]), limit, |token| {
            ours.push(token);
            Ok(())
        })?;
        let mut expected = ids(&entry["float32"]["ids"]);
        expected.truncate(limit);
        expected.retain(|&token| token != end);
        assert_eq!(ours, expected, "{}", entry["prompt"]);
    }
    Ok(())
}
