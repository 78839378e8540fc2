//! Checks the header of a `.metallib` before Metal loads it, since Metal's own error is vague.

use crate::error::{Error, Result};

/// A version of the Metal shading language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MetalVersion {
    /// The first number: 3 in 3.1.
    pub major: u16,
    /// The second number: 1 in 3.1.
    pub minor: u16,
}

impl std::fmt::Display for MetalVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Metal {}.{}", self.major, self.minor)
    }
}

/// Releases of macOS, and the version of the language that each release introduced.
const RELEASES: [(u32, MetalVersion); 5] = [
    (13, MetalVersion { major: 3, minor: 0 }),
    (14, MetalVersion { major: 3, minor: 1 }),
    (15, MetalVersion { major: 3, minor: 2 }),
    (26, MetalVersion { major: 4, minor: 0 }),
    (27, MetalVersion { major: 4, minor: 1 }),
];

/// The major version that macOS 26 reports to programs that were linked with an old SDK.
const CALLS_ITSELF: u32 = 16;
const IS_REALLY: u32 = 26;

const HEADER_BYTES: usize = 88;
const MACOS: u8 = 0x81;

fn damaged(what: &str) -> Error {
    Error::argument("metal_library", format_args!("a .metallib, got one whose {what}"))
}

/// The little-endian number in up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// The `size` bytes from `at` on, or `None` if the file does not have them.
fn part(bytes: &[u8], at: u64, size: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(at).ok()?..)?.get(..usize::try_from(size).ok()?)
}

/// The oldest macOS that a library was compiled for, as major and minor version.
fn deployment_target(header: &[u8]) -> (u32, u32) {
    let of = |at: usize| header.get(at..at + 2).map_or(0, number) as u32;
    (of(12), of(14))
}

/// Returns an error if a library was compiled for a newer macOS than this one.
fn check_release(header: &[u8], release: Option<u32>) -> Result<()> {
    let (major, minor) = deployment_target(header);
    match release {
        Some(release) if major > release => Err(Error::argument(
            "metal_library",
            format_args!(
                "a .metallib that macOS {release} runs, got one for macOS {major}.{minor} and later: compile \
                 it with -mmacosx-version-min={release}.0"
            ),
        )),
        _ => Ok(()),
    }
}

/// The newest version of the language that a function of the library was compiled for, or an error
/// if `check_for` refuses the library for this machine's macOS (`None` on other systems).
pub(super) fn check(bytes: &[u8]) -> Result<MetalVersion> {
    check_for(bytes, macos_release())
}

/// Like `check`, for a given release of macOS. `None` means a system that does not run metallibs.
///
/// # Errors
///
/// Returns an error if the library is damaged, is not for macOS, is made for a later release, or
/// has a newer version of the language than `supported` returns.
pub fn check_for(bytes: &[u8], release: Option<u32>) -> Result<MetalVersion> {
    if bytes.len() < HEADER_BYTES || !bytes.starts_with(b"MTLB") {
        return Err(damaged("header is not that of one"));
    }
    // The 64-bit words from byte 16 on are the size of the file, then an offset and a size for each
    // of these: the function list, the public metadata, the private metadata and the bitcode.
    let word = |i: usize| number(&bytes[16 + 8 * i..][..8]);
    if word(0) != bytes.len() as u64 {
        return Err(damaged("size is not what its header says: it may be cut short"));
    }
    if bytes[11] != MACOS {
        return Err(damaged("system is not macOS"));
    }
    let sections = [(word(3), word(4)), (word(5), word(6)), (word(7), word(8))];
    if sections.iter().any(|&(at, size)| part(bytes, at, size).is_none()) {
        return Err(damaged("sections lie outside of it"));
    }
    // The size of the function list does not include its first four bytes, the number of functions.
    let list = word(2).checked_add(4).and_then(|size| part(bytes, word(1), size));
    let version = list
        .and_then(|list| newest(list, word(8)))
        .ok_or_else(|| damaged("list of functions is damaged"))?;
    check_release(bytes, release)?;
    if let Some(supported) = supported(release)
        && version > supported
    {
        let needs = RELEASES.iter().find(|(_, brought)| *brought >= version);
        let needs =
            needs.map_or(String::new(), |(release, _)| format!(", which needs macOS {release}"));
        let said = format_args!(
            "a .metallib of at most {supported}, which is what this system runs, got one of {version}{needs}: compile it with -std=metal{}.{} or lower",
            supported.major, supported.minor
        );
        return Err(Error::argument("metal_library", said));
    }
    Ok(version)
}

/// The newest version in a function list; `None` if the list is damaged. The list begins with the
/// number of functions. Each function's entry consists of the entry's size and of tags. A tag
/// consists of a name, a length and data.
fn newest(list: &[u8], bitcode: u64) -> Option<MetalVersion> {
    let mut newest = None;
    let mut rest = list.get(4..)?;
    let count = number(list.get(..4)?);
    for _ in 0..count {
        let (entry, after) =
            rest.split_at_checked(usize::try_from(number(rest.get(..4)?)).ok()?)?;
        let mut tags = entry.get(4..)?;
        let (mut named, mut version, mut offset, mut size) = (false, None, None, None);
        while !tags.starts_with(b"ENDT") {
            let (head, data) = tags.split_at_checked(6)?;
            let (data, after) = data.split_at_checked(number(&head[4..]) as usize)?;
            match &head[..4] {
                b"NAME" => named = data.len() > 1,
                b"VERS" => {
                    let [major, minor] = [4, 6].map(|at| data.get(at..at + 2).map(number));
                    version = Some(MetalVersion { major: major? as u16, minor: minor? as u16 });
                }
                b"OFFT" => offset = Some(number(data.get(16..24)?)),
                b"MDSZ" => size = Some(number(data.get(..8)?)),
                _ => {}
            }
            tags = after;
        }
        let inside = offset?.checked_add(size?).is_some_and(|end| end <= bitcode);
        newest = newest.max(version.filter(|_| named && inside));
        version.filter(|_| named && inside)?;
        rest = after;
    }
    newest
}

/// The newest version of the language that a release of macOS runs; `None` if the release is later
/// than all releases in `RELEASES`. Without a release, returns the newest version there.
pub fn supported(release: Option<u32>) -> Option<MetalVersion> {
    let [(_, oldest), .., (latest, newest)] = RELEASES;
    match release {
        None => Some(newest),
        Some(release) if release > latest => None,
        Some(release) => {
            let brought = RELEASES.iter().rev().find(|(first, _)| *first <= release);
            Some(brought.map_or(oldest, |(_, version)| *version))
        }
    }
}

/// The major version of macOS, or `None` on other systems.
#[cfg(target_os = "macos")]
fn macos_release() -> Option<u32> {
    let mut text = [0u8; 64];
    let mut length = text.len();
    let name = c"kern.osproductversion";
    // SAFETY: the name ends with a zero; the call writes at most `length` bytes to `text`, and
    // their number to `length`. The new value is null, so the call does not change the setting.
    let failed = unsafe {
        libc::sysctlbyname(
            name.as_ptr(),
            text.as_mut_ptr().cast(),
            &mut length,
            std::ptr::null_mut(),
            0,
        )
    };
    (failed == 0).then(|| release_of(&String::from_utf8_lossy(text.get(..length)?)))?
}

#[cfg(not(target_os = "macos"))]
fn macos_release() -> Option<u32> {
    None
}

/// The major number of a macOS version, such as 14 of 14.5.
pub fn release_of(version: &str) -> Option<u32> {
    let first = version.split(['.', '\0']).next()?.trim().parse().ok()?;
    Some(if first == CALLS_ITSELF { IS_REALLY } else { first })
}
