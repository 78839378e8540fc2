//! Runs the tests of the command again, with all kernels in the Metal simulator.

use harness::simulated::{in_other_orders, once};

#[test(seconds = 1800, simulated = never)]
fn the_short_tests() {
    once("forward", "3");
}

#[test(seconds = 3600, simulated = never)]
#[ignore = "run by scripts/verify.sh"]
fn in_other_orders_of_threads() {
    in_other_orders(|order| drop(once(order, "1")));
}
