//! Faults in the data of a dispatch, such as its grid or its parameters.

use std::collections::BTreeMap;

use mlx_primitives::{Change, Dispatched};

/// A fault, and the dispatches in which it can be planted. The number of a case and the number of a
/// dispatch in this case identify a dispatch.
pub struct Job {
    /// The kernel's name. For a fault in a parameter, it is the stem, because all kernels of the
    /// file `metal/<stem>.metal` have the same parameters.
    pub of: String,
    pub change: Change,
    pub places: Vec<(usize, usize)>,
}

/// A fault is tried in at most this many dispatches, until one of them reveals it.
const PLACES: usize = 64;

/// The changes that can be made to a dispatch. For each index of threadgroup memory, one `Memory`
/// change removes all of this memory. Its number is `i32::MIN`, because sizes differ.
fn changes(dispatched: &Dispatched) -> Vec<Change> {
    let encoded = &dispatched.encoded;
    let mut all = Vec::new();
    for axis in 0..3 {
        all.extend([Change::Grid(axis, 1), Change::Grid(axis, -1)]);
    }
    all.extend([Change::Group(0, 32), Change::Group(0, -32)]);
    for &(index, bytes) in &encoded.memory {
        if bytes > 0 {
            all.extend([Change::Memory(index, -16), Change::Memory(index, i32::MIN)]);
        }
    }
    let read: Vec<_> = encoded.arrays.iter().filter(|(_, _, written)| !written).collect();
    all.extend(read.windows(2).map(|pair| Change::Swapped(pair[0].0, pair[1].0)));
    let written = encoded.arrays.iter().filter(|(_, _, written)| *written);
    all.extend(written.map(|(index, _, _)| Change::Offset(*index, 4)));
    for (index, words) in &encoded.parameters {
        let words = (0..words.len()).flat_map(|word| [(word, 1), (word, -1)]);
        all.extend(words.map(|(word, by)| Change::Word(*index, word, by)));
    }
    all
}

/// All faults for these dispatches. Each item of the iterator has a stem, the number of a case, and
/// the dispatches of the case.
pub fn jobs<'a>(originals: impl Iterator<Item = (&'a str, usize, Vec<Dispatched>)>) -> Vec<Job> {
    let mut found: BTreeMap<(String, String), Job> = BTreeMap::new();
    for (stem, case, dispatched) in originals {
        for (number, dispatched) in dispatched.iter().enumerate() {
            for change in changes(dispatched) {
                let of = match change {
                    Change::Word(..) => stem.to_owned(),
                    _ => dispatched.kernel.clone(),
                };
                let job = found.entry((of.clone(), name(change))).or_insert_with(|| Job {
                    of,
                    change,
                    places: Vec::new(),
                });
                job.places.push((case, number));
            }
        }
    }
    let mut jobs: Vec<Job> = found.into_values().collect();
    for job in &mut jobs {
        // Order the dispatches pseudorandomly, so that the first ones come from all kinds of cases.
        job.places.sort_by_key(|(case, number)| (case * 7919 + number * 31) % 1009);
        job.places.truncate(PLACES);
    }
    jobs
}

pub fn name(change: Change) -> String {
    match change {
        Change::Grid(axis, by) => format!("grid {axis} {by}"),
        Change::Group(axis, by) => format!("group {axis} {by}"),
        Change::Memory(index, by) => format!("memory {index} {by}"),
        Change::Swapped(a, b) => format!("swapped {a} {b}"),
        Change::Word(index, word, by) => format!("word {index} {word} {by}"),
        Change::Offset(index, bytes) => format!("offset {index} {bytes}"),
    }
}

/// Parses a name that `name` returned.
pub fn parse(name: &str) -> Change {
    let mut words = name.split(' ');
    let kind = words.next().unwrap_or_default();
    let numbers: Vec<i64> = words.map(|word| word.parse().expect("a number")).collect();
    match (kind, &numbers[..]) {
        ("grid", &[axis, by]) => Change::Grid(axis as usize, by as i32),
        ("group", &[axis, by]) => Change::Group(axis as usize, by as i32),
        ("memory", &[index, by]) => Change::Memory(index as u32, by as i32),
        ("swapped", &[a, b]) => Change::Swapped(a as u32, b as u32),
        ("word", &[index, word, by]) => Change::Word(index as u32, word as usize, by as i32),
        ("offset", &[index, bytes]) => Change::Offset(index as u32, bytes as usize),
        _ => panic!("no change is named {name}"),
    }
}
