//! A model generates the same text with our kernels and with MLX's ops.

use std::rc::Rc;

use mlx_primitives::tune::{Choices, Key, with_choices};
use mlx_primitives_llama::{Checkpoint, Quantization};

use crate::llama::greedy;
use crate::support::tune::key;
use crate::support::{Checked, simulated};

/// For each op, our kernel and MLX's op round in the same way, so choosing one or the other does
/// not change a token. The test uses the built-in rules for several GPUs, with plain and packed
/// weights.
#[test]
fn a_model_of_chosen_ops_writes_the_same_text() -> Checked {
    let plain = Checkpoint::demo()?;
    let packed = plain.llama.quantized(Quantization::affine(32, 4))?;
    let packed = Checkpoint { llama: packed, ..Checkpoint::demo()? };
    let of_gpu = |chip: &str| Choices::built_in(&Key { chip: chip.to_owned(), ..key() });
    let all = [
        ("MLX's ops", Choices::mlx()),
        ("an M3", of_gpu("Apple M3 Max")),
        ("an M5", of_gpu("Apple M5")),
        ("an H100", of_gpu("NVIDIA H100 80GB HBM3")),
    ];
    for checkpoint in [&plain, &packed] {
        let prompt = checkpoint.tokenizer.encode("Once upon a time, a dog saw a big ball.")?;
        assert!(prompt.len() > 8, "rows that the rules of GPUs give to MLX");
        let tokens = || greedy(checkpoint, &prompt, if simulated() { 4 } else { 24 });
        let ours = with_choices(Rc::new(Choices::ours()), tokens);
        assert_eq!(tokens(), ours, "defaults");
        for (name, choices) in &all {
            assert_eq!(with_choices(Rc::new(choices.clone()), tokens), ours, "{name}");
        }
        #[cfg(target_os = "linux")]
        {
            use mlx_primitives::simulator::{Schedule, with_metal};
            let first = || greedy(checkpoint, &prompt, 1);
            assert_eq!(with_metal(Schedule::Forward, first)?, ours[..1], "simulated");
        }
    }
    Ok(())
}
