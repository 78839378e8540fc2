//! Downloads the files of a model into the hub's cache, in the layout of `huggingface_hub`.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ring::digest::{Context, SHA256};

use super::Download;
use super::fetch::{Failure, Hub, Known};
use super::name::Name;

type Watch<'a> = &'a mut dyn FnMut(Download<'_>) -> ControlFlow<()>;

/// A request that receives no byte is tried `ATTEMPTS` times. `PAUSE` is the pause after the first
/// attempt; it grows with each attempt.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(300);
/// While another rank or program downloads a file, this process checks at this interval whether the
/// download has finished.
const LOOK: Duration = Duration::from_millis(200);

/// Downloads the missing files of a model.
pub(super) fn download(folder: &Path, name: &Name, watch: Watch<'_>) -> Result<(), String> {
    let hub = Hub::of_environment();
    let listed = again(|| hub.list(name))?;
    let repository = folder.join(name.folder());
    let snapshot = repository.join("snapshots").join(&listed.commit);
    for file in name.wanted(&listed.files)? {
        let place = snapshot.join(&file);
        if !place.exists() {
            let known = again(|| hub.facts(name, &listed.commit, &file))?;
            let blob = Blob { hub: &hub, name, commit: &listed.commit, file: &file, known };
            let bytes = blob.get(folder, &repository, watch)?;
            link(&bytes, &place, file.split('/').count() + 1)
                .map_err(|error| io(&place, &error))?;
        }
    }
    // The reference is written last, so that it names only a commit whose files are all in the
    // cache.
    if name.revision != listed.commit {
        let reference = repository.join("refs").join(&name.revision);
        write(&reference, &listed.commit).map_err(|error| io(&reference, &error))?;
    }
    Ok(())
}

fn io(path: &Path, error: &std::io::Error) -> String {
    format!("{} cannot be written: {error}", path.display())
}

fn parent(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    parent(path)?;
    fs::write(path, text)
}

/// Makes a request, and repeats it while its failure may be temporary. Gives up after `ATTEMPTS`
/// attempts.
fn again<T>(mut ask: impl FnMut() -> Result<T, Failure>) -> Result<T, String> {
    let mut attempt = 1;
    loop {
        match ask() {
            Ok(found) => return Ok(found),
            Err(failure) if !failure.passing || attempt == ATTEMPTS => return Err(failure.reason),
            Err(_) => thread::sleep(PAUSE * attempt),
        }
        attempt += 1;
    }
}

/// Makes `place` a link to the file `bytes`. The folder of `place` is `depth` levels below the
/// folder of the repository.
#[cfg(unix)]
fn link(bytes: &Path, place: &Path, depth: usize) -> std::io::Result<()> {
    parent(place)?;
    let up: PathBuf = std::iter::repeat_n("..", depth).collect();
    let target = up.join("blobs").join(bytes.file_name().unwrap_or_default());
    match std::os::unix::fs::symlink(&target, place) {
        // Another program has made the link already, or an existing link is broken.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            if place.exists() {
                return Ok(());
            }
            fs::remove_file(place)?;
            std::os::unix::fs::symlink(&target, place)
        }
        result => result,
    }
}

#[cfg(not(unix))]
fn link(bytes: &Path, place: &Path, _: usize) -> std::io::Result<()> {
    parent(place)?;
    fs::rename(bytes, place)
}

/// A file of the model, with the information that its download needs. In the folder `blobs`, the
/// file's name is its ETag on the hub.
struct Blob<'a> {
    hub: &'a Hub,
    name: &'a Name,
    commit: &'a str,
    file: &'a str,
    known: Known,
}

impl Blob<'_> {
    /// Returns the path of the file in `blobs`, and downloads it first if it is missing.
    fn get(&self, folder: &Path, repository: &Path, watch: Watch<'_>) -> Result<PathBuf, String> {
        let etag = &self.known.etag;
        let path = repository.join("blobs").join(etag);
        let lock = folder.join(".locks").join(self.name.folder()).join(format!("{etag}.lock"));
        let mut state = |done: u64| {
            let state = Download { file: self.file, done, total: self.known.size };
            match watch(state) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(
                    "the download was interrupted; it goes on when the model is asked for again"
                        .to_owned(),
                ),
            }
        };
        let locked = parent(&lock).and_then(|()| File::create(&lock));
        let locked = locked.map_err(|error| io(&lock, &error))?;
        // Wait while another program downloads this file.
        while let Err(error) = locked.try_lock() {
            match error {
                TryLockError::WouldBlock => state(0)?,
                TryLockError::Error(_) => break, // the file system has no locks
            }
            thread::sleep(LOOK);
        }
        if path.metadata().is_ok_and(|found| found.len() == self.known.size) {
            return Ok(path);
        }
        parent(&path).map_err(|error| io(&path, &error))?;
        let part = repository.join("blobs").join(format!("{etag}.incomplete"));
        self.fetch(&part, &mut state)?;
        self.check(&part, &mut state)?;
        fs::rename(&part, &path).map_err(|error| io(&path, &error))?;
        Ok(path)
    }

    /// Checks the SHA-256 of a large file against its ETag, and removes the file if they differ.
    fn check(
        &self,
        part: &Path,
        state: &mut dyn FnMut(u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let Known { etag, size } = &self.known;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if etag.len() != 64 || !etag.bytes().all(is_digit) {
            return Ok(());
        }
        let unreadable = |error: std::io::Error| format!("{}: {error}", part.display());
        let mut input = File::open(part).map_err(unreadable)?;
        let (mut sum, mut block) = (Context::new(&SHA256), vec![0; 1 << 20]);
        loop {
            match input.read(&mut block).map_err(unreadable)? {
                0 => break,
                count => sum.update(block.get(..count).unwrap_or_default()),
            }
            state(*size)?;
        }
        let mut found = String::new();
        for byte in sum.finish().as_ref() {
            let _ = write!(found, "{byte:02x}");
        }
        if found == *etag {
            return Ok(());
        }
        fs::remove_file(part).map_err(|error| io(part, &error))?;
        let file = self.file;
        Err(format!(
            "{file} came with another SHA-256 than {etag} and was removed: ask for the model again"
        ))
    }

    /// Downloads the missing bytes of the incomplete file `part`.
    fn fetch(
        &self,
        part: &Path,
        state: &mut dyn FnMut(u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let unwritable = |error: std::io::Error| io(part, &error);
        let options = OpenOptions::new().create(true).append(true).read(true).open(part);
        let mut output = options.map_err(unwritable)?;
        let mut attempt = 0;
        loop {
            let mut done = output.metadata().map_err(unwritable)?.len();
            if done > self.known.size {
                output.set_len(0).map_err(unwritable)?; // too long to be a part of this file
                done = 0;
            }
            state(done)?;
            if done == self.known.size {
                return output.sync_all().map_err(unwritable);
            }
            if attempt > 0 {
                thread::sleep(PAUSE * attempt);
            }
            let before = done;
            let reason = match self.continue_at(&mut output, done, state) {
                Ok(reason) => reason,
                Err(failure) if failure.passing => failure.reason,
                Err(failure) => return Err(failure.reason),
            };
            let after = output.metadata().map_err(unwritable)?.len();
            attempt = if after > before { 1 } else { attempt + 1 };
            if after != self.known.size && attempt >= ATTEMPTS {
                let (file, size) = (self.file, self.known.size);
                return Err(format!(
                    "{file} broke off after {after} of {size} bytes ({reason}): ask for the model \
                     again to go on from there"
                ));
            }
        }
    }

    /// Downloads from byte `start` on until the connection ends. Returns why the connection ended.
    fn continue_at(
        &self,
        output: &mut File,
        start: u64,
        state: &mut dyn FnMut(u64) -> Result<(), String>,
    ) -> Result<String, Failure> {
        let lasting = |reason| Failure { reason, passing: false };
        let (mut done, blocks) = self.hub.bytes(self.name, self.commit, self.file, start)?;
        if done != start {
            output.set_len(done).map_err(|error| lasting(error.to_string()))?;
        }
        loop {
            let block = match blocks.next() {
                Ok(block) if block.is_empty() => return Ok("the connection ended".into()),
                Ok(block) => block,
                Err(reason) => return Ok(reason),
            };
            done += block.len() as u64;
            if done > self.known.size {
                let _ = output.set_len(0);
                let (file, size) = (self.file, self.known.size);
                return Err(lasting(format!("the hub sent more than the {size} bytes of {file}")));
            }
            output.write_all(&block).map_err(|error| lasting(error.to_string()))?;
            state(done).map_err(lasting)?;
        }
    }
}
