//! Runs a model on two ranks (processes that share the work), once with the default settings and
//! once with the choices of kernels that the built-in rule makes for NVIDIA GPUs.

use std::process::Command;

use anyhow::Context;
use mlx_primitives::device::{self, Device};
use mlx_primitives::ops::QuantizedMode;
use mlx_primitives::tune::{Choice, Choices, Key, Measured, classes_of};
use mlx_primitives_llama::{Checkpoint, ModelFiles, Options, Quantization};

use crate::support::models::DEMO;
use crate::support::ranks::{LIMIT, Ranks};
use crate::support::tune::{choices_file, key};
use crate::support::{Checked, simulated};

/// Returns the texts that a quantized model generates in one process and on two ranks. `tune` is
/// the value of the environment variable for the choice of kernels.
fn texts(model: &str, cache: &str, tune: Option<&str>, scheme: &str) -> Checked<[String; 2]> {
    let command = |several: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-primitives"));
        command.args(["generate", "Once upon a time, a dog saw a big ball.", "-m", "20"]);
        command.args(["--model", model, "--threads", "1"]);
        command.args(several.then_some(["--split", scheme]).iter().flatten());
        command.env("XDG_CACHE_HOME", cache).env_remove("MLX_PRIMITIVES_TUNE");
        command.envs(tune.map(|value| ("MLX_PRIMITIVES_TUNE", value)));
        command
    };
    let one = command(false).output()?;
    assert!(one.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
    let ends = Ranks::start(2, |_| command(true))?.ends(LIMIT)?;
    for (rank, (status, _, err)) in ends.iter().enumerate() {
        assert!(status.success(), "rank {rank}, {tune:?}, {scheme}: {err}");
    }
    Ok([String::from_utf8(one.stdout)?, ends[0].1.clone()])
}

#[test(simulated = never)]
fn packed_weights_on_two_ranks_by_every_choice() -> Checked {
    if simulated() {
        return Ok(()); // it would take minutes in the simulator
    }
    let folder = tempfile::tempdir()?;
    let cache = folder.path().join("cache");
    let cache = cache.to_str().context("a path")?;
    let mxfp4 = Quantization { group_size: 32, bits: 4, mode: QuantizedMode::Mxfp4 };
    for (name, to) in [("affine", Quantization::affine(32, 4)), ("mxfp4", mxfp4)] {
        let model = folder.path().join(name);
        ModelFiles::open(DEMO)?.quantized(to, None, |_, _| {})?.save(&model)?;
        let path = model.to_str().context("a path")?;
        for scheme in ["gather", "pipeline"] {
            let [one, two] = texts(path, cache, None, scheme)?;
            assert_eq!(one, two, "{name}, {scheme}");
        }

        // Write a file of choices: it claims that this machine measured the choices of the rule for
        // NVIDIA GPUs.
        let checkpoint = Checkpoint::load(&model)?;
        let prompt = checkpoint.tokenizer.encode("Once upon a time, a dog saw a big ball.")?;
        let options = Options { max_tokens: 2, ..Options::default() };
        let (_, classes) =
            classes_of(|| checkpoint.generate(&prompt, &options).map(Iterator::count));
        let rule = Choices::built_in(&Key { chip: "NVIDIA H100".to_owned(), ..key() });
        let of_mlx: Vec<_> = classes.iter().filter(|it| rule.choice(it) == Choice::Mlx).collect();
        assert!(of_mlx.len() > 8, "{classes:?}");
        let mut choices = Choices::ours();
        for class in of_mlx {
            choices.add(class, Measured { ours: 2.0, mlx: 1.0, agrees: true });
        }
        let chip = format!("{}, {}, 1 threads", Device::Cpu.name()?, device::cpu_kernels());
        let here = Key { chip, ..Key::here(Device::Cpu)? };
        let file = std::path::Path::new(cache).join("mlx-primitives").join(choices_file()?);
        choices.write(&file, &here)?;
        let [one, two] = texts(path, cache, Some("file"), "gather")?;
        assert_eq!(one, two, "{name}, by the rule of a GPU");
        std::fs::remove_file(&file)?;
    }
    Ok(())
}
