//! Models that are split into several GGUF files.

use std::fs;
use std::path::{Path, PathBuf};

use mlx_primitives_llama::{Checkpoint, Options};
use tempfile::TempDir;

use crate::support::gguf::{Entry, Gguf, bytes_speaker};
use crate::support::{Checked, message};

const CYCLE: [(u32, u32); 3] = [(97, 98), (98, 99), (99, 257)];

/// Writes a model as `count` files, like llama.cpp's `gguf-split`. Only the first file has the
/// metadata entries.
fn write(folder: &Path, whole: &Gguf, count: u16) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for number in 0..count {
        let mut part = Gguf::default();
        if number == 0 {
            part.entries = whole.entries.clone();
        }
        let tensors = whole.tensors.iter().enumerate();
        let own = tensors.filter(|(index, _)| index % usize::from(count) == usize::from(number));
        part.tensors = own.map(|(_, tensor)| tensor.clone()).collect();
        part.set("split.no", Entry::U16(number))
            .set("split.count", Entry::U16(count))
            .set("split.tensors.count", Entry::I32(whole.tensors.len() as i32));
        let name = format!("model-{:05}-of-{count:05}.gguf", number + 1);
        paths.push(folder.join(name));
        part.write(&paths[usize::from(number)])?;
    }
    Ok(paths)
}

#[test(simulated = never)]
fn any_part_stands_for_the_whole() -> Checked {
    let folder = TempDir::new()?;
    let paths = write(folder.path(), &bytes_speaker(&CYCLE), 3)?;
    for path in &paths {
        let checkpoint = Checkpoint::load(path)?;
        let prompt = checkpoint.tokenizer.encode("a")?;
        let options = Options { max_tokens: 9, ..Options::default() };
        let tokens: Result<Vec<u32>, _> = checkpoint.generate(&prompt, &options)?.collect();
        assert_eq!(checkpoint.tokenizer.decode(&tokens?)?, "bc");
    }
    Ok(())
}

#[test(simulated = never)]
fn parts_that_are_missing_or_others_are_named() -> Checked {
    let folder = TempDir::new()?;
    let whole = bytes_speaker(&CYCLE);
    let paths = write(folder.path(), &whole, 3)?;
    let named = |path: &Path| path.display().to_string();

    fs::rename(&paths[1], folder.path().join("away"))?;
    for (path, part) in [(&paths[0], 1), (&paths[2], 3)] {
        let text = message(Checkpoint::load(path));
        let expected = format!("this is part {part} of 3, expected {} beside it", named(&paths[1]));
        assert_eq!(text, format!("{}: {expected}", named(path)));
    }
    // The file has the name of part 2 but contains part 3.
    fs::copy(&paths[2], &paths[1])?;
    let text = message(Checkpoint::load(&paths[0]));
    assert_eq!(text, format!("{}: expected part 2 of 3, got another", named(&paths[1])));
    // The file has the name of part 2 but contains a whole model.
    whole.write(&paths[1])?;
    let text = message(Checkpoint::load(&paths[0]));
    assert_eq!(text, format!("{}: expected part 2 of 3, got another", named(&paths[1])));
    fs::rename(folder.path().join("away"), &paths[1])?;

    let renamed = folder.path().join("first.gguf");
    fs::rename(&paths[0], &renamed)?;
    let text = message(Checkpoint::load(&renamed));
    assert!(text.contains("this is part 1 of 3, expected a name that ends in"), "{text}");
    assert!(text.contains("-00001-of-00003.gguf"), "{text}");
    fs::rename(&renamed, &paths[0])?;

    // In one case a tensor is missing, and in the other case two parts have the same tensor.
    for (name, expected) in [(None, "tensors in all parts"), (Some("x"), "tensors in all parts")] {
        let other = TempDir::new()?;
        let paths = write(other.path(), &whole, 2)?;
        let mut part = Gguf { tensors: whole.tensors.clone(), ..Gguf::default() };
        part.tensors.retain({
            let mut index = 0;
            move |_| {
                index += 1;
                index % 2 == 0
            }
        });
        match name {
            None => part.tensors.truncate(part.tensors.len() - 1),
            Some(name) => {
                part.tensor(name, &[1], vec![1.0]);
            }
        }
        part.set("split.no", Entry::U16(1)).set("split.count", Entry::U16(2));
        part.write(&paths[1])?;
        let text = message(Checkpoint::load(&paths[0]));
        assert!(text.contains(expected), "{text}");
    }
    let other = TempDir::new()?;
    let mut twice = whole.clone();
    twice.tensors.push(whole.tensors[0].clone());
    let paths = write(other.path(), &twice, 2)?;
    let text = message(Checkpoint::load(&paths[0]));
    assert!(text.contains("each tensor in one file") || text.contains("twice"), "{text}");
    Ok(())
}

#[test(simulated = never)]
fn counts_of_parts_have_a_limit() -> Checked {
    let folder = TempDir::new()?;
    for (number, count) in [(0u16, 60_000u16), (5, 3), (3, 3)] {
        let path = folder.path().join(format!("x-{:05}-of-{count:05}.gguf", number + 1));
        let mut file = bytes_speaker(&CYCLE);
        file.set("split.no", Entry::U16(number)).set("split.count", Entry::U16(count));
        file.write(&path)?;
        let text = message(Checkpoint::load(&path));
        assert!(text.contains("split.no below a split.count"), "{text}");
    }
    Ok(())
}
