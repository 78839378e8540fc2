//! Tests models that are given by their names on the Hugging Face hub. A server on this machine
//! replaces the hub.

#[cfg(unix)]
mod interrupted;
mod server;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::support::Checked;
use crate::support::models::DEMO;
use server::{COMMIT, Fault, Server, TOKEN};

const SNAPSHOT: &str = "models--org--model/snapshots/0123456789abcdef0123456789abcdef01234567";
const BLOBS: &str = "models--org--model/blobs";
/// A prompt of one token.
const PROMPT: &str = "Once";

/// The files of a test repository: the demo model, and files that no command should download.
fn demo() -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for name in ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"] {
        files.insert(name.to_owned(), fs::read(Path::new(DEMO).join(name))?);
    }
    for name in ["README.md", ".gitattributes", "pytorch_model.bin", "onnx/model.onnx"] {
        files.insert(name.to_owned(), vec![b'x'; 1000]);
    }
    // These paths lead out of the cache.
    files.insert("../../outside.json".into(), b"{}".to_vec());
    files.insert("model/../../outside.safetensors".into(), b"{}".to_vec());
    Ok(files)
}

/// A server in place of the hub, and a folder for the cache.
struct Place {
    server: Server,
    cache: TempDir,
}

impl Place {
    fn new(files: BTreeMap<String, Vec<u8>>) -> anyhow::Result<Self> {
        Ok(Self { server: Server::start(files)?, cache: tempfile::tempdir()? })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-primitives"));
        for name in ["HF_HUB_OFFLINE", "HF_TOKEN", "HF_HOME", "XDG_CACHE_HOME", "HF_TOKEN_PATH"] {
            command.env_remove(name);
        }
        for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(name);
        }
        command
            .args(arguments)
            .env("HF_ENDPOINT", &self.server.address)
            .env("HF_HUB_CACHE", self.cache.path())
            .env("HOME", self.cache.path())
            .stdin(Stdio::null());
        command
    }

    fn generate(&self, model: &str) -> Command {
        self.command(&["generate", PROMPT, "-m", "3", "--model", model])
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.cache.path().join(name)
    }

    /// The size of the largest file in the cache, complete or incomplete. It is the file of the
    /// weights.
    fn bytes(&self) -> u64 {
        let entries = fs::read_dir(self.path(BLOBS)).into_iter().flatten().flatten();
        let lengths = entries.filter_map(|entry| Some(entry.metadata().ok()?.len()));
        lengths.max().unwrap_or(0)
    }
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// The text that the demo model generates for the prompt.
fn expected() -> String {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-primitives"));
        let output = command.args(["generate", PROMPT, "-m", "3"]).output();
        said(&output.expect("the command")).0
    });
    TEXT.clone()
}

fn succeeds(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output()?;
    let (out, err) = said(&output);
    ensure!(output.status.success(), "{err}");
    Ok(out)
}

/// Checks that a command fails with an error of one line that contains these strings.
fn refused(command: &mut Command, texts: &[&str]) -> Checked {
    let output = command.output()?;
    let (out, err) = said(&output);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert_eq!(out, "");
    for text in texts {
        assert!(err.contains(text), "expected {text}: {err}");
    }
    assert!(err.starts_with("error: ") && err.lines().count() == 1 && err.len() < 600, "{err}");
    assert!(!err.trim_end().contains(char::is_control), "{err:?}");
    Ok(())
}

#[test]
fn a_name_is_downloaded_once() -> Checked {
    let place = Place::new(demo()?)?;
    let expected = expected();
    assert_eq!(succeeds(&mut place.generate("org/model"))?, expected);
    let requests = place.server.requests();
    let asked = |name: &str| requests.iter().any(|request| request.contains(name));
    assert!(asked("/resolve/") && asked("tokenizer.json") && asked("model.safetensors"));
    assert!(!asked("README") && !asked("onnx") && !asked("pytorch") && !asked("outside"));
    assert_eq!(fs::read_to_string(place.path("models--org--model/refs/main"))?, COMMIT);
    let weights = place.path(SNAPSHOT).join("model.safetensors");
    assert!(fs::read(&weights)? == fs::read(Path::new(DEMO).join("model.safetensors"))?);
    #[cfg(unix)]
    {
        let link = fs::read_link(&weights)?;
        assert!(link.starts_with("../../blobs"), "{}", link.display());
    }
    // A second run works without a request and without a connection, and other commands accept the
    // name too.
    assert_eq!(succeeds(&mut place.generate("org/model"))?, expected);
    succeeds(place.generate("org/model").env("HF_HUB_OFFLINE", "1"))?;
    succeeds(&mut place.generate(&format!("org/model@{COMMIT}")))?;
    succeeds(&mut place.command(&["info", "--model", "org/model"]))?;
    succeeds(&mut place.command(&["generate", "a", "-m", "2", "--draft-model", "org/model"]))?;
    assert_eq!(place.server.requests(), [""; 0]);
    // If another revision is the same commit, the command uses the files in the cache.
    succeeds(&mut place.generate("org/model@refs/pr/1"))?;
    let requests = place.server.requests();
    assert!(requests.iter().all(|request| request.contains("/api/models/")), "{requests:?}");
    Ok(())
}

#[test]
fn caches_that_the_variables_name() -> Checked {
    let place = Place::new(demo()?)?;
    succeeds(&mut place.generate("org/model"))?;
    let folder = tempfile::tempdir()?;
    let all = |to: &str| -> Checked {
        let to = folder.path().join(to);
        fs::create_dir_all(&to)?;
        let copy =
            Command::new("cp").arg("-a").arg(place.path("models--org--model")).arg(to).status()?;
        ensure!(copy.success(), "cp failed");
        Ok(())
    };
    all("home/hub")?;
    all("xdg/huggingface/hub")?;
    all("user/.cache/huggingface/hub")?;
    for (name, value) in [("HF_HOME", "home"), ("XDG_CACHE_HOME", "xdg"), ("HOME", "user")] {
        let mut command = place.generate("org/model");
        command.env_remove("HF_HUB_CACHE").env("HF_HUB_OFFLINE", "1");
        let wrong = command.env("HOME", "/missing").output()?;
        assert_eq!(wrong.status.code(), Some(1), "found without {name}");
        succeeds(command.env(name, folder.path().join(value)))?;
    }
    Ok(())
}

#[test]
fn a_path_that_exists_wins() -> Checked {
    let place = Place::new(demo()?)?;
    let folder = tempfile::tempdir()?;
    fs::create_dir_all(folder.path().join("org"))?;
    #[cfg(unix)]
    std::os::unix::fs::symlink(DEMO, folder.path().join("org/model"))?;
    succeeds(place.generate("org/model").current_dir(folder.path()))?;
    assert_eq!(place.server.requests(), [""; 0]);
    // If a path does not have the form `owner/name`, the command sends no request.
    for path in ["/org/model", "./org/model", "../org/model", "org", "org/..", "org/a b", "org/m/n"]
    {
        refused(&mut place.generate(path), &["there is no such folder"])?;
    }
    assert_eq!(place.server.requests(), [""; 0]);
    Ok(())
}

#[test]
fn a_download_goes_on_where_it_ended() -> Checked {
    let place = Place::new(demo()?)?;
    let size = fs::metadata(Path::new(DEMO).join("model.safetensors"))?.len() as usize;
    // The connection breaks several times. Each time, the command requests the rest of the file.
    place.server.fail(Fault::BreaksAfter(size / 4));
    assert_eq!(succeeds(&mut place.generate("org/model"))?, expected());
    let requests = place.server.requests();
    let parts = requests.iter().filter(|request| request.starts_with("/blob/model.safetensors"));
    let ranges: Vec<_> = parts.filter_map(|request| request.split_once("bytes=")).collect();
    let starts: Vec<usize> =
        ranges.iter().filter_map(|(_, range)| range.trim_end_matches('-').parse().ok()).collect();
    assert_eq!(starts, [1, 2, 3].map(|quarter| size / 4 * quarter), "{requests:?}");
    Ok(())
}

#[test]
fn servers_without_parts_and_busy_ones() -> Checked {
    let weights = fs::read(Path::new(DEMO).join("model.safetensors"))?;
    let half = weights.len() / 2;
    // An earlier download has left half of the file, or more bytes than the file has. The command
    // requests the second half, but discards a file that is too long.
    for part in [weights[..half].to_vec(), vec![0; weights.len() + 1]] {
        for fault in [Fault::NoRanges, Fault::Busy(2)] {
            let place = Place::new(demo()?)?;
            let name = format!("{}.incomplete", server::sha256(&weights));
            fs::create_dir_all(place.path(BLOBS))?;
            fs::write(place.path(BLOBS).join(name), &part)?;
            place.server.fail(fault);
            assert_eq!(succeeds(&mut place.generate("org/model"))?, expected(), "{fault:?}");
            let requests = place.server.requests();
            let rest = format!("bytes={half}-");
            let goes_on = |request: &String| {
                request.contains("/model.safetensors") && request.contains(&rest)
            };
            assert_eq!(requests.iter().any(goes_on), part.len() == half, "{fault:?} {requests:?}");
        }
    }
    Ok(())
}

#[test]
fn faults_of_the_hub() -> Checked {
    for (fault, texts) in [
        (Fault::Longer, &["the hub sent more than the"][..]),
        (Fault::Shorter, &["model.safetensors broke off after", "ask for the model again"]),
        (Fault::Altered, &["model.safetensors came with another SHA-256", "was removed: ask for"]),
        (Fault::NoWeights, &["the model is gated"]),
        (Fault::NoEtag, &["does not say how large"]),
        (Fault::EtagOutside, &["does not say how large", "ETag"]),
        (Fault::OtherCommit, &["of another commit than"]),
        (Fault::CommitOutside, &["sent no list of files"]),
        (Fault::NoList, &["sent no list of files"]),
        (Fault::Redirects, &["more than 10 redirects"]),
        (Fault::RedirectNowhere, &["a redirect leads nowhere"]),
        (Fault::Busy(1000), &["answered with the status 503: try again later"]),
    ] {
        let place = Place::new(demo()?)?;
        place.server.fail(fault);
        refused(&mut place.generate("org/model"), texts).with_context(|| format!("{fault:?}"))?;
        assert!(!place.cache.path().join("../outside").exists());
        // After the fault is gone, the command succeeds, in spite of the incomplete files in the
        // cache.
        place.server.fail(Fault::None);
        assert_eq!(succeeds(&mut place.generate("org/model"))?, expected(), "{fault:?}");
    }
    Ok(())
}

#[test]
fn models_that_cannot_be_had() -> Checked {
    let place = Place::new(demo()?)?;
    refused(
        &mut place.generate("org/unknown"),
        &["org/unknown: there is no such file or folder here, \
        and the hub knows no public model org/unknown: check the name, or if it is private, give a \
        token by HF_TOKEN"],
    )?;
    refused(&mut place.generate("org/model@unknown"), &["has no revision unknown"])?;
    refused(&mut place.generate("org/model/x.gguf"), &["org/model has no x.gguf, it has no GGUF"])?;
    let offline = &["is not complete in ", "HF_HUB_OFFLINE is set"];
    refused(place.generate("org/model").env("HF_HUB_OFFLINE", "1"), offline)?;
    let closed = place.generate("org/model").env("HF_ENDPOINT", "http://127.0.0.1:1").output()?;
    let (_, err) = said(&closed);
    assert!(err.contains("http://127.0.0.1:1 cannot be reached: "), "{err}");

    place.server.gate();
    let gated =
        &["the model is gated: ask for access at http://", "/org/model, and give a token by"];
    refused(&mut place.generate("org/model"), gated)?;
    let wrong = &["the model is gated", "the token of HF_TOKEN or `hf auth login` has no right"];
    refused(place.generate("org/model").env("HF_TOKEN", "hf_wrong"), wrong)?;
    // The command reads the token that `hf auth login` stores.
    let home = tempfile::tempdir()?;
    fs::write(home.path().join("token"), format!("{TOKEN}\n"))?;
    succeeds(place.generate("org/model").env("HF_HOME", home.path()))?;
    let place = Place::new(demo()?)?;
    place.server.gate();
    succeeds(place.generate("org/model").env("HF_TOKEN", TOKEN))?;
    Ok(())
}

#[test]
fn repositories_of_other_files() -> Checked {
    let gguf = fs::read(crate::support::models::checkpoints().join("gguf-q4_0/model.gguf"))?;
    let tokenizer = fs::read(Path::new(DEMO).join("tokenizer.json"))?;
    let with = |names: &[&str]| -> anyhow::Result<Place> {
        let files = names.iter().map(|name| ((*name).to_owned(), gguf.clone()));
        let mut files: BTreeMap<String, Vec<u8>> = files.collect();
        files.insert("tokenizer.json".into(), tokenizer.clone());
        Place::new(files)
    };
    let info = |place: &Place, name: &str| place.command(&["info", "--model", name]);
    let place = with(&["q4.gguf"])?;
    succeeds(&mut info(&place, "org/model"))?;
    assert!(place.path(SNAPSHOT).join("tokenizer.json").exists());
    let place = with(&["q4.gguf", "q8.gguf", "more/q2.gguf"])?;
    let several = ["org/model has several GGUF files: give one, as org/model/more/q2.gguf, of \
                    more/q2.gguf, q4.gguf, q8.gguf"];
    refused(&mut info(&place, "org/model"), &several)?;
    succeeds(&mut info(&place, "org/model/q8.gguf"))?;
    succeeds(&mut info(&place, "org/model/more/q2.gguf@main"))?;
    let asked = place.server.requests().iter().any(|request| request.contains("q4.gguf"));
    assert!(!asked, "a file that nobody wants was asked for");
    // Remove one file of a split model, as if its download had been interrupted.
    let parts = [1, 2].map(|part| format!("q4-{part:05}-of-00002.gguf"));
    let place = with(&[&parts[0], &parts[1]])?;
    let named = format!("org/model/{}", parts[0]);
    for model in ["org/model", &named] {
        let _ = info(&place, model).output()?;
        let last = place.path(SNAPSHOT).join(&parts[1]);
        assert!(last.exists(), "{model}");
        fs::remove_file(&last)?;
        refused(info(&place, model).env("HF_HUB_OFFLINE", "1"), &["is not complete in"])?;
        let _ = info(&place, model).output()?;
        assert!(last.exists(), "{model}: the download did not go on");
    }
    // A number beyond the count names no part, so this file is a model by itself.
    let odd = "q4-00001-of-00000.gguf";
    let place = with(&[odd])?;
    succeeds(&mut info(&place, "org/model"))?;
    fs::remove_file(place.path(SNAPSHOT).join(odd))?;
    refused(info(&place, "org/model").env("HF_HUB_OFFLINE", "1"), &["is not complete in"])?;
    let place = with(&["pytorch_model.bin"])?;
    let bin = ["org/model has its weights in pytorch_model.bin and not in safetensors"];
    refused(&mut info(&place, "org/model"), &bin)?;
    refused(&mut info(&with(&[])?, "org/model"), &["has no weights in safetensors or GGUF"])?;

    // The index names two files of weights, and one of them is missing.
    let mut files = demo()?;
    let index = r#"{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}"#;
    files.insert("model.safetensors.index.json".into(), index.into());
    files.insert("model-2.safetensors".into(), files["model.safetensors"].clone());
    let place = Place::new(files)?;
    let _ = place.generate("org/model").output()?;
    fs::remove_file(place.path(SNAPSHOT).join("model-2.safetensors"))?;
    refused(
        place.generate("org/model").env("HF_HUB_OFFLINE", "1"),
        &["is not complete in", "models--org--model"],
    )
}

/// Tests wrong files that people pass as a model, such as a single file of it or a pointer of Git
/// LFS.
#[test]
fn files_that_are_no_models() -> Checked {
    let place = Place::new(demo()?)?;
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let run = |path: &Path| place.generate(path.to_str().unwrap_or_default());
    let parent = format!("give the folder {}", folder.path().display());
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(Path::new(DEMO).join(name), at(name))?;
    }
    for name in ["config.json", "model.safetensors"] {
        refused(&mut run(&at(name)), &["expected a folder or a .gguf file", &parent])?;
        let path = at(name).display().to_string();
        let quantize = ["quantize", "--model", &path, "--output", "/missing/out"];
        refused(&mut place.command(&quantize), &[&parent])?;
    }
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 1234\n";
    let pull = ["this is a pointer of Git LFS and not the file", "git lfs pull"];
    for name in ["model.safetensors", "tokenizer.json"] {
        fs::write(at(name), pointer)?;
        refused(&mut run(folder.path()), &[&[name][..], &pull].concat())?;
        fs::copy(Path::new(DEMO).join(name), at(name))?;
    }
    fs::write(at("x.gguf"), pointer)?;
    refused(&mut run(&at("x.gguf")), &pull)?;
    fs::remove_file(at("x.gguf"))?;
    for name in ["tokenizer.model", "tekken.json"] {
        fs::rename(at("tokenizer.json"), at(name))?;
        let alone = format!("its tokenizer is in {name} alone");
        refused(&mut run(folder.path()), &[&alone, "AutoTokenizer"])?;
        fs::rename(at(name), at("tokenizer.json"))?;
    }
    fs::rename(at("model.safetensors"), at("pytorch_model.bin"))?;
    let bin = ["its weights are in pytorch_model.bin and not in safetensors", "save_pretrained"];
    refused(&mut run(folder.path()), &bin)?;
    fs::remove_file(at("config.json"))?;
    fs::rename(at("pytorch_model.bin"), at("model.gguf"))?;
    refused(&mut run(folder.path()), &["give the file", "model.gguf"])
}
