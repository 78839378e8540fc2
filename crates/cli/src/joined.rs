//! The group of ranks that this process has joined.

use std::fmt::Display;
use std::sync::OnceLock;

use mlx_primitives_ranks::{Group, Split};

static JOINED: OnceLock<(Group, Split)> = OnceLock::new();

/// Stores the group, and the split of the model.
pub fn set(group: Group, split: Split) {
    let _ = JOINED.set((group, split));
}

/// Returns the split of the model, if there are several ranks.
pub fn split() -> Option<&'static Split> {
    JOINED.get().map(|(_, split)| split)
}

/// Returns the group, if there are several ranks.
pub fn group() -> Option<&'static Group> {
    JOINED.get().map(|(group, _)| group)
}

/// Returns whether this process prints the result. If there are several ranks, only rank 0 does.
pub fn is_first() -> bool {
    group().is_none_or(|group| group.rank() == 0)
}

/// Tells the other ranks why this rank ends early.
pub fn fail(reason: impl Display) {
    if let Some(group) = group() {
        group.fail(&reason.to_string());
    }
}
