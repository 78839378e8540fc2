//! Refuses paths that do not lead to a model, with errors that say what to do.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::gguf::is_gguf;
use mlx_primitives::{Error, Result};

/// The first bytes of a Git LFS pointer file, which stands for a file that is not downloaded, and
/// an upper limit for the size of a pointer file in bytes.
const POINTER: &[u8] = b"version https://git-lfs";
const LONGEST: u64 = 1024;

/// Returns an error if the path cannot be a model that this crate reads. The error says what to do.
/// The loader finds other mistakes in the files.
pub(crate) fn check(path: &Path) -> Result<()> {
    let refuse = |reason: &dyn std::fmt::Display| Err(Error::file(path, reason));
    let Ok(found) = fs::metadata(path) else {
        // The loader's error would name a file in the folder, and not say that the folder is
        // missing.
        return match path.try_exists() {
            Ok(false) if !is_gguf(path) => refuse(
                &"there is no such folder; a model is a folder with config.json, a .gguf file, or for \
                  the command a name on the Hugging Face hub, such as org/name",
            ),
            _ => Ok(()),
        };
    };
    if found.is_file() {
        refuse_pointer(path)?;
        if !is_gguf(path) {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).display();
            return refuse(&format_args!(
                "expected a folder or a .gguf file, got another file: give the folder {folder}"
            ));
        }
        return Ok(());
    }
    let Ok(entries) = fs::read_dir(path) else { return Ok(()) };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    let ends = |end: &str| names.iter().find(|name| name.ends_with(end));
    for name in &names {
        if [".json", ".safetensors", ".model", ".gguf"].iter().any(|end| name.ends_with(end)) {
            refuse_pointer(&path.join(name))?;
        }
    }
    if let (Some(gguf), None) = (ends(".gguf"), ends(".safetensors")) {
        return refuse(&format_args!(
            "expected a folder with config.json and safetensors, got one with GGUF: give the file {}",
            path.join(gguf).display()
        ));
    }
    if let (Some(other), None) =
        (ends(".bin").or(ends(".pth")).or(ends(".pt")), ends(".safetensors"))
    {
        return refuse(&format_args!(
            "its weights are in {other} and not in safetensors, the format that runs no code: take a \
             repository with safetensors, or convert it by transformers' \
             AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(DIR)"
        ));
    }
    Ok(())
}

/// Returns an error if the folder has no `tokenizer.json`. The error says what to do.
pub(crate) fn check_tokenizer(folder: &Path) -> Result<()> {
    if folder.join("tokenizer.json").exists() {
        return Ok(());
    }
    let other = ["tokenizer.model", "tekken.json", "spiece.model", "vocab.json"];
    match other.iter().find(|name| folder.join(name).exists()) {
        None => Err(Error::file(
            folder,
            "there is no tokenizer.json: download it from where the weights are from, or make it by \
             transformers' AutoTokenizer.from_pretrained(MODEL).save_pretrained(DIR)",
        )),
        Some(other) => Err(Error::file(
            folder,
            format_args!(
                "its tokenizer is in {other} alone: make tokenizer.json of it by transformers' \
                 AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
            ),
        )),
    }
}

/// Returns an error if a file is still a Git LFS pointer file instead of the real file.
fn refuse_pointer(path: &Path) -> Result<()> {
    let small = fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() < LONGEST);
    let mut start = Vec::new();
    let read = |file: File| file.take(POINTER.len() as u64).read_to_end(&mut start);
    if small && File::open(path).and_then(read).is_ok() && start == POINTER {
        return Err(Error::file(
            path,
            "this is a pointer of Git LFS and not the file: run `git lfs install` and `git lfs pull` \
             in its folder",
        ));
    }
    Ok(())
}
