//! The resources of a compiled kernel.

/// The resources of a kernel, as ptxas reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of registers per thread.
    pub registers: u32,
    /// The bytes of local memory for a thread's stack.
    pub stack: u32,
    /// The bytes that a thread stores to local memory because it has too few registers.
    pub spilled: u32,
}

impl Report {
    /// Reads lines such as `ptxas info : Used 40 registers` and `8 bytes stack frame, 0 bytes spill
    /// stores`.
    pub(crate) fn parse(log: &str) -> Option<Self> {
        let before = |line: &str, words: &str| -> Option<u32> {
            let text = line.split(words).next().filter(|text| text.len() < line.len())?;
            text.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        let find = |words: &str| log.lines().filter_map(|line| before(line, words)).max();
        Some(Self {
            registers: find(" registers")?,
            stack: find(" bytes stack frame")?,
            spilled: find(" bytes spill stores")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Report;

    #[test]
    fn reports_are_read() {
        let log = "ptxas info    : Compiling entry function 'f' for 'sm_90'\n\
                   ptxas info    : Function properties for f\n    \
                   16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n\
                   ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size";
        assert_eq!(Report::parse(log), Some(Report { registers: 40, stack: 16, spilled: 8 }));
        assert_eq!(Report::parse("nothing"), None);
    }
}
