//! Groups of ranks: processes on this machine that work together.

mod faults;
mod gathers;
mod hostile;
mod nccl;
mod proxy;
pub mod ranks;
mod roles;
mod secrets;
mod starts;
mod strangers;

use std::time::Duration;

use ranks::{Place, all_end};
pub use roles::role;

use crate::support::Checked;

/// A timeout that no pause of a busy machine reaches.
const LONG: Duration = Duration::from_secs(60);

#[test(simulated = never)]
fn values_on_two_ranks() -> Checked {
    all_end(Place::new(2)?.start("values", LONG)?, 0, "values are right on 2 ranks")
}

#[test(simulated = never)]
fn values_on_three_ranks() -> Checked {
    all_end(Place::new(3)?.start("values", LONG)?, 0, "values are right on 3 ranks")
}

#[test(simulated = never)]
fn values_on_one_rank() -> Checked {
    all_end(Place::new(1)?.start("values", LONG)?, 0, "values are right on 1 ranks")
}

#[test(simulated = never)]
fn gathers_of_unequal_parts() -> Checked {
    for ranks in [1, 2, 3] {
        let place = Place::new(ranks)?.start("gathers", LONG)?;
        all_end(place, 0, &format!("gathers are right on {ranks} ranks"))?;
    }
    Ok(())
}

#[test(simulated = never)]
fn derivatives_and_maps() -> Checked {
    all_end(Place::new(2)?.start("derivatives", LONG)?, 0, "derivatives are right")
}

#[test(simulated = never)]
fn messages_over_the_control_connections() -> Checked {
    all_end(Place::new(3)?.start("messages", LONG)?, 0, "messages are right")
}

#[test(simulated = never)]
fn calls_that_are_refused() -> Checked {
    all_end(Place::new(2)?.start("refusals", LONG)?, 0, "refused")?;
    all_end(Place::new(4)?.start("neighbors", LONG)?, 0, "refused")
}
