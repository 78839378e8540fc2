//! The training text: log entries of a ship, in a style that the demo model has not been trained
//! on.

/// A small linear congruential generator, which gives the same text on every machine.
struct Dice(u64);

impl Dice {
    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        from[(self.0 >> 33) as usize % from.len()]
    }
}

const SHIPS: [&str; 6] = ["Albatross", "Petrel", "Marigold", "Northern Star", "Osprey", "Juniper"];
const PORTS: [&str; 8] =
    ["Bergen", "Lisbon", "Cork", "Tromsø", "Cadiz", "Hull", "Genoa", "Reykjavik"];
const WINDS: [&str; 6] = ["north", "south", "east", "west", "north-east", "south-west"];
const FORCES: [&str; 4] = ["light", "fresh", "strong", "steady"];
const SEAS: [&str; 4] = ["calm", "rough", "slight", "heavy"];
const CARGOES: [&str; 6] = ["salt", "timber", "oranges", "wool", "copper", "grain"];
const ROLES: [&str; 5] = ["the cook", "the mate", "the bosun", "the carpenter", "the lookout"];
const EVENTS: [&str; 7] = [
    "reported a sail on the horizon",
    "mended the fore topsail",
    "counted nine whales to port",
    "found a leak and stopped it",
    "caught three cod",
    "saw a light to starboard",
    "asked for more rope",
];
const ORDERS: [&str; 5] = [
    "We reefed the mainsail",
    "We held our course",
    "We set all sail",
    "We hove to until morning",
    "We took soundings every hour",
];

/// One entry of the log.
fn entry(dice: &mut Dice) -> String {
    format!(
        "Log of the {}, bound for {} with {}. Wind {} and {}, sea {}. {}. At noon {} {}. {}, and all was well.",
        dice.pick(&SHIPS),
        dice.pick(&PORTS),
        dice.pick(&CARGOES),
        dice.pick(&WINDS),
        dice.pick(&FORCES),
        dice.pick(&SEAS),
        dice.pick(&ORDERS),
        dice.pick(&ROLES),
        dice.pick(&EVENTS),
        dice.pick(&ORDERS),
    )
}

/// Makes entries for training, and held-out entries for evaluation.
pub fn entries(train: usize, held_out: usize) -> (Vec<String>, Vec<String>) {
    let mut dice = Dice(7);
    let mut all: Vec<String> = Vec::new();
    while all.len() < train + held_out {
        let new = entry(&mut dice);
        if !all.contains(&new) {
            all.push(new);
        }
    }
    let judged = all.split_off(train);
    (all, judged)
}
