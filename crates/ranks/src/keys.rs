//! The secret that the ranks of a group share, and the values that ranks derive from it: proofs
//! that a rank knows the secret, keys of connections, and tags of the frames on them.

use std::env;
use std::net::ToSocketAddrs;
use std::path::Path;

use blake3::{Hash, Hasher};

use super::hosts::Place;
use mlx_primitives::support::files;
use mlx_primitives::{Error, Result};

/// The variables with the secret itself and with the path of a file that contains it.
const TEXT: &str = "MLX_PRIMITIVES_RANK_SECRET";
const FILE: &str = "MLX_PRIMITIVES_RANK_SECRET_FILE";
/// The limits of a secret's length in bytes. An attacker who has seen a greeting could find a short
/// secret by guessing.
const SHORTEST: usize = 16;
const LONGEST: usize = 4096;
/// Makes these keys differ from the keys of other programs.
const CONTEXT: &str = "mlx-primitives 2026-11-26 the secret of a group of ranks";
/// Replaces the secret if all ranks are on one machine and no secret is set. It protects nothing.
const NO_SECRET: &[u8] = b"";

/// A key, or random bytes of the same length.
pub(super) type Key = [u8; blake3::KEY_LEN];
/// The length of proofs and tags.
pub(super) const TAG: usize = blake3::OUT_LEN;

/// The key that all ranks of a group know.
#[derive(Clone)]
pub(super) struct Secret(Key);

impl Secret {
    /// Reads the secret from the environment.
    ///
    /// # Errors
    ///
    /// Returns an error if no secret is set and an address of the group is not a loopback address,
    /// if both variables are set, if the file cannot be read, or if the secret is too short or too
    /// long.
    pub(super) fn read(place: &Place) -> Result<Self> {
        let (text, file) = (env::var_os(TEXT), env::var_os(FILE));
        let (name, bytes) = match (&text, &file) {
            (Some(_), Some(_)) => {
                return Err(Error::argument(TEXT, format_args!("either this or {FILE}, got both")));
            }
            (Some(text), None) => (TEXT, text.as_encoded_bytes().to_vec()),
            (None, Some(path)) => (FILE, files::read_to_string(Path::new(path))?.into_bytes()),
            (None, None) => return without_secret(place),
        };
        let bytes = bytes.trim_ascii();
        if !(SHORTEST..=LONGEST).contains(&bytes.len()) {
            return Err(Error::argument(
                name,
                format_args!(
                    "a secret of {SHORTEST} to {LONGEST} bytes, such as `openssl rand -hex 32` \
                     writes, got {}",
                    bytes.len()
                ),
            ));
        }
        Ok(Self::of(bytes))
    }

    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(blake3::derive_key(CONTEXT, bytes))
    }

    /// Hashes a purpose and `parts`. Only a rank that knows the secret can compute the hash.
    pub(super) fn prove(&self, purpose: &str, parts: &[&[u8]]) -> Hash {
        let mut hasher = Hasher::new_keyed(&self.0);
        for part in [purpose.as_bytes()].iter().chain(parts) {
            // The length precedes each part, so that different lists of parts give different bytes
            // to hash.
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        hasher.finalize()
    }

    /// Returns the two seals of a connection, which make the tags of its frames, forward and back.
    /// The caller decides which rank sends forward.
    pub(super) fn seals(&self, purpose: &str, parts: &[&[u8]]) -> (Seal, Seal) {
        let seal = |way: &[u8]| {
            let parts = [parts, &[way]].concat();
            Seal { key: *self.prove(purpose, &parts).as_bytes(), number: 0 }
        };
        (seal(b"forward"), seal(b"back"))
    }
}

/// Returns the key of ranks without a secret, or an error if an address is not a loopback address.
fn without_secret(place: &Place) -> Result<Secret> {
    match place.hosts.iter().flatten().find(|address| !is_of_this_machine(address)) {
        None => Ok(Secret::of(NO_SECRET)),
        Some(address) => Err(Error::distributed(
            "join",
            format_args!(
                "{address} is reached over a network, where others could take part, so give every \
                 rank the same secret: in a file that {FILE} names, such as \
                 `openssl rand -hex 32` writes, or in {TEXT}"
            ),
        )),
    }
}

/// Whether an address, `host:port`, is a loopback address, which other machines cannot reach.
fn is_of_this_machine(address: &str) -> bool {
    let found = address.to_socket_addrs();
    found.is_ok_and(|mut found| {
        let first = found.next();
        first.is_some_and(|first| first.ip().is_loopback())
            && found.all(|next| next.ip().is_loopback())
    })
}

/// Makes the tags of the frames that go in one direction over a connection.
pub(super) struct Seal {
    key: Key,
    number: u64,
}

impl Seal {
    /// Computes the tag of the next frame. The hash needs no lengths, since all headers on one
    /// connection have the same length.
    pub(super) fn next(&mut self, head: &[u8], content: &Hash) -> Hash {
        let mut hasher = Hasher::new_keyed(&self.key);
        hasher.update(&self.number.to_le_bytes()).update(head).update(content.as_bytes());
        self.number += 1;
        hasher.finalize()
    }
}

/// Whether `got` is the expected proof or tag. `Hash` compares itself with an array in constant
/// time, so the time does not depend on the bytes.
pub(super) fn is_same(expected: &Hash, got: &[u8]) -> bool {
    <&[u8; TAG]>::try_from(got).is_ok_and(|got| expected == got)
}

/// Returns random bytes that nobody can predict.
pub(super) fn random() -> Result<Key> {
    let mut bytes = Key::default();
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::distributed("join", format_args!("no random bytes: {error}")))?;
    Ok(bytes)
}
