//! Every kernel of the workspace, launched by its own host code, over every dtype, odd shapes
//! and three schedules: no faults, right results, least traffic.
#![cfg(target_os = "linux")]

mod common;
#[path = "common/suite/mod.rs"]
mod suite;

use std::collections::BTreeSet;

use metal_sim::{Constants, Library, Source};
use suite::dtype::Dtype;
use suite::harness::{self, SCHEDULES};
use suite::host::{Host, NONE};
use suite::op::{Case, Op};
use suite::{announce, cases, parallel, workspace};

fn library(name: &str) -> Library {
    let source = Source::new(common::metal(name));
    Library::compile(&source, common::compiler(), common::cache()).unwrap()
}

#[test]
fn every_kernel() {
    let host = Host::build(&workspace().join("cpp")).unwrap();
    let libraries = parallel(&["rms_norm", "softmax", "rope"], |name| library(name));
    let cases = cases::full();
    let launches = host.launches(&cases).unwrap();
    let find = |name: &str| {
        libraries.iter().find_map(|library| library.kernel(name, &Constants::new()).ok())
    };
    let planned: Vec<_> = cases.iter().zip(launches).collect();
    let failures = parallel(&planned, |(case, launch)| match launch {
        Ok(launch) => harness::run(case, launch, &find).err().map(|f| format!("{case:?}: {f:?}")),
        Err(error) => Some(format!("{case:?}: {error}")),
    });
    let failures: Vec<_> = failures.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{} cases fail: {:#?}", failures.len(), &failures[..1]);

    let launched: BTreeSet<String> = planned
        .iter()
        .filter_map(|(_, launch)| Some(launch.as_ref().ok()?.kernel.clone()))
        .collect();
    let all = libraries.iter().flat_map(|library| library.kernels().unwrap());
    let all: BTreeSet<String> = all.map(|kernel| kernel.name).collect();
    assert_eq!(launched, all);
    announce(&format!(
        "metal-sim: {} kernels, {} cases (kernel × dtype × shape × schedule), 0 faults",
        all.len(),
        cases.len() * SCHEDULES.len()
    ));
}

#[test]
fn nothing_is_launched_for_nothing() {
    let host = Host::build(&workspace().join("cpp")).unwrap();
    let rope = Op::Rope { dims: 4, interleaved: false, freqs: false, forward: true, offsets: 1 };
    let calls = [
        (Op::Softmax, vec![0, 5]),
        (Op::RmsNorm { weighted: true }, vec![0, 500]),
        (rope, vec![2, 0, 3, 8]),
    ];
    let call = |(op, shape): (Op, Vec<usize>)| Case {
        op,
        dtype: Dtype::F32,
        shape,
        in_place: false,
        limit: 1024,
    };
    for launch in host.launches(&calls.map(call)).unwrap() {
        assert_eq!(launch.unwrap().kernel, NONE);
    }
}
