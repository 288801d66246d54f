//! The cases. A peer is a VM of 1 CPU (of at most 4) and 512 MiB, which can have 2 GiB more in blocks of 2 MiB.

use informant_host::vmm::{Actuator, Vmm, VmmError};
use informant_wire::size::{Bytes, MilliCpu, Size};

/// How a peer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Normal,
    /// Changes are for later.
    NotYet,
    /// Changes are refused, with [`REFUSAL`] in the text.
    Refuse,
    /// A change is taken and never answered.
    TakeAndHang,
    /// A change is neither taken nor answered.
    Hang,
    /// Nothing is answered.
    Silent,
    /// What comes is no answer.
    Garbage,
    /// What comes is half of one, and then the end.
    Half,
    /// What comes has no end.
    Endless,
}

pub(crate) const REFUSAL: &str = "not with this machine";

pub(crate) trait Peer {
    /// A fresh one, as after a restart of the daemon.
    fn actuator(&self) -> Actuator;
    fn set(&self, mode: Mode);
    /// Whether the guest takes and gives what was asked at once, or when told by [`Peer::apply`].
    fn applies(&self, applies: bool);
    fn apply(&self);
    /// Every change it was asked to make.
    fn sent(&self) -> Vec<String>;
    /// It is gone.
    fn stop(&self);
    fn scales_cpus(&self) -> bool {
        true
    }
}

pub(crate) fn size(cpus: u32, mib: u64) -> Size {
    Size { cpu: MilliCpu::from_cpus(cpus), memory: Bytes::mib(mib) }
}

fn more_cpus(peer: &dyn Peer) -> u32 {
    if peer.scales_cpus() { 3 } else { 1 }
}

/// All tests of the contract, for what `$start` gives.
macro_rules! contract {
    ($start:expr) => {
        $crate::suite::contract!($start; observes, grows_and_shrinks, asks_nothing_twice, rounds_up,
            not_yet_is_later, a_refusal_is_for_ever, nobody_there, garbage, half_an_answer, an_answer_without_end,
            beyond_both_ends, wish_and_truth_differ, giving_back_takes_time);
    };
    ($start:expr; $($case:ident),*) => {
        $(#[tokio::test]
        async fn $case() {
            $crate::suite::$case(&$start).await;
        })*

        /// Those that wait for a deadline do so together.
        #[tokio::test]
        async fn no_answers() {
            let (deaf, forgetful, silent) = ($start, $start, $start);
            tokio::join!(
                $crate::suite::no_answer_is_a_timeout(&deaf),
                $crate::suite::a_lost_answer_is_looked_after(&forgetful),
                $crate::suite::silence(&silent)
            );
        }
    };
}
pub(crate) use contract;

pub(crate) async fn observes(peer: &dyn Peer) {
    let seen = peer.actuator().observe().await.unwrap();
    assert_eq!((seen.has, seen.wish), (size(1, 512), size(1, 512)));
    assert!(seen.is_settled() && seen.running);
    let memory = seen.can.memory;
    assert_eq!((memory.min, memory.max, memory.block), (Bytes::mib(512), Bytes::mib(2560), Bytes::mib(2)));
    assert_eq!(seen.can.cpu.max, MilliCpu::from_cpus(if peer.scales_cpus() { 4 } else { 1 }));
    assert_eq!(seen.can.cpu.is_fixed(), !peer.scales_cpus());
    assert!(!seen.can.balloon);
    assert_eq!(peer.sent(), [""; 0]);
}

pub(crate) async fn grows_and_shrinks(peer: &dyn Peer) {
    let mut vmm = peer.actuator();
    for wanted in [size(more_cpus(peer), 1024), size(1, 768), size(1, 2560), size(1, 512)] {
        let seen = vmm.resize(wanted).await.unwrap();
        assert_eq!((seen.has, seen.wish), (wanted, wanted));
        assert_eq!(vmm.observe().await.unwrap(), seen);
    }
}

pub(crate) async fn asks_nothing_twice(peer: &dyn Peer) {
    let mut vmm = peer.actuator();
    let wanted = size(more_cpus(peer), 1024);
    vmm.resize(size(1, 512)).await.unwrap();
    assert_eq!(peer.sent(), [""; 0], "it was so already");
    vmm.resize(wanted).await.unwrap();
    let sent = peer.sent();
    assert!(!sent.is_empty());
    assert_eq!(vmm.resize(wanted).await.unwrap().wish, wanted);
    assert_eq!(peer.actuator().resize(wanted).await.unwrap().wish, wanted);
    assert_eq!(peer.sent(), sent);
}

pub(crate) async fn rounds_up(peer: &dyn Peer) {
    let mut vmm = peer.actuator();
    let odd = Size { cpu: MilliCpu(250), memory: Bytes(Bytes::mib(1024).0 - 5) };
    assert_eq!(vmm.resize(odd).await.unwrap().wish, size(1, 1024));
    let sent = peer.sent();
    vmm.resize(size(1, 1024)).await.unwrap();
    assert_eq!(peer.sent(), sent, "the same size");
    // Never below what was agreed.
    let odd = Size { cpu: MilliCpu(1000), memory: Bytes(Bytes::mib(600).0 + 1) };
    assert_eq!(vmm.resize(odd).await.unwrap().wish, size(1, 602));
}

pub(crate) async fn not_yet_is_later(peer: &dyn Peer) {
    let mut vmm = peer.actuator();
    peer.set(Mode::NotYet);
    let error = vmm.resize(size(1, 1024)).await.unwrap_err();
    assert!(matches!(error, VmmError::NotYet(_)) && error.is_transient(), "{error:?}");
    peer.set(Mode::Normal);
    assert_eq!(vmm.observe().await.unwrap().wish, size(1, 512));
    assert_eq!(vmm.resize(size(1, 1024)).await.unwrap().has, size(1, 1024));
}

pub(crate) async fn a_refusal_is_for_ever(peer: &dyn Peer) {
    let mut vmm = peer.actuator();
    peer.set(Mode::Refuse);
    let error = vmm.resize(size(1, 1024)).await.unwrap_err();
    assert!(matches!(error, VmmError::Refused(_)) && !error.is_transient(), "{error:?}");
    assert!(error.to_string().contains(REFUSAL), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    assert_eq!(vmm.observe().await.unwrap().wish, size(1, 512));
}

pub(crate) async fn no_answer_is_a_timeout(peer: &dyn Peer) {
    let mut vmm = peer.actuator();
    peer.set(Mode::Hang);
    let error = vmm.resize(size(1, 1024)).await.unwrap_err();
    assert!(matches!(error, VmmError::Timeout(_)) && error.is_transient(), "{error:?}");
    peer.set(Mode::Normal);
    let seen = vmm.observe().await.unwrap();
    assert_eq!((seen.has, seen.wish), (size(1, 512), size(1, 512)));
    assert_eq!(vmm.resize(size(1, 1024)).await.unwrap().has, size(1, 1024));
}

/// Others took a timeout for a failure, and a VM's size went wrong: autoscaling issue 1375.
pub(crate) async fn a_lost_answer_is_looked_after(peer: &dyn Peer) {
    let mut vmm = peer.actuator();
    peer.set(Mode::TakeAndHang);
    let seen = vmm.resize(size(1, 1024)).await.unwrap();
    assert_eq!((seen.has, seen.wish), (size(1, 1024), size(1, 1024)));
    let sent = peer.sent();
    assert_eq!(sent.len(), 1, "{sent:?}");
    peer.set(Mode::Normal);
    vmm.resize(size(1, 1024)).await.unwrap();
    assert_eq!(peer.sent(), sent);
}

pub(crate) async fn nobody_there(peer: &dyn Peer) {
    let mut vmm = peer.actuator();
    peer.stop();
    for error in [vmm.observe().await.unwrap_err(), vmm.resize(size(1, 1024)).await.unwrap_err()] {
        assert!(matches!(error, VmmError::Unreachable(_)) && error.is_transient(), "{error:?}");
    }
}

async fn is_no_answer(peer: &dyn Peer, mode: Mode) {
    let mut vmm = peer.actuator();
    peer.set(mode);
    let error = vmm.observe().await.unwrap_err();
    assert!(matches!(error, VmmError::Protocol(_)) && error.is_transient(), "{error:?}");
    assert!(error.to_string().len() < 1000, "{error}");
    peer.set(Mode::Normal);
    assert_eq!(vmm.observe().await.unwrap().has, size(1, 512));
}

pub(crate) async fn silence(peer: &dyn Peer) {
    let mut vmm = peer.actuator();
    peer.set(Mode::Silent);
    let error = vmm.observe().await.unwrap_err();
    assert!(matches!(error, VmmError::Timeout(_)), "{error:?}");
    peer.set(Mode::Normal);
    assert_eq!(vmm.observe().await.unwrap().has, size(1, 512));
}

pub(crate) async fn garbage(peer: &dyn Peer) {
    is_no_answer(peer, Mode::Garbage).await;
}

pub(crate) async fn half_an_answer(peer: &dyn Peer) {
    is_no_answer(peer, Mode::Half).await;
}

pub(crate) async fn an_answer_without_end(peer: &dyn Peer) {
    is_no_answer(peer, Mode::Endless).await;
}

pub(crate) async fn beyond_both_ends(peer: &dyn Peer) {
    let mut vmm = peer.actuator();
    for (wanted, end) in [(size(1, 2562), "above 2560 MiB (2684354560 bytes)"), (size(1, 510), "below 512 MiB")] {
        let error = vmm.resize(wanted).await.unwrap_err();
        assert!(matches!(error, VmmError::Refused(_)) && error.to_string().contains(end), "{error:?}");
    }
    let error = vmm.resize(size(5, 512)).await.unwrap_err();
    if peer.scales_cpus() {
        assert_eq!(error, VmmError::Refused("5 CPUs wanted, and the VM cannot go above 4 CPUs".into()));
    } else {
        assert_eq!(error, VmmError::Unsupported("the VM's CPUs are fixed at 1 CPU, 5 CPUs wanted".into()));
    }
    assert_eq!(peer.sent(), [""; 0]);
}

/// What was granted and never arrives stays visible: autoscaling issues 23, 350, 462, 593, 1391.
pub(crate) async fn wish_and_truth_differ(peer: &dyn Peer) {
    let mut vmm = peer.actuator();
    peer.applies(false);
    let wanted = size(more_cpus(peer), 1024);
    let seen = vmm.resize(wanted).await.unwrap();
    assert_eq!((seen.has.memory, seen.wish), (Bytes::mib(512), wanted));
    assert!(!seen.is_settled());
    let sent = peer.sent();
    for _ in 0..3 {
        let seen = vmm.resize(wanted).await.unwrap();
        assert_eq!((seen.has.memory, seen.wish), (Bytes::mib(512), wanted));
    }
    assert_eq!(peer.sent(), sent, "asked once");
    peer.apply();
    let seen = vmm.observe().await.unwrap();
    assert!(seen.is_settled());
    assert_eq!(seen.has, wanted);
}

pub(crate) async fn giving_back_takes_time(peer: &dyn Peer) {
    let mut vmm = peer.actuator();
    let large = size(more_cpus(peer), 2048);
    vmm.resize(large).await.unwrap();
    peer.applies(false);
    let seen = vmm.resize(size(1, 1024)).await.unwrap();
    assert_eq!((seen.has.memory, seen.wish), (large.memory, size(1, 1024)));
    let sent = peer.sent();
    vmm.resize(size(1, 1024)).await.unwrap();
    assert_eq!(peer.sent(), sent, "asked once");
    // And before that arrived, more again.
    let seen = vmm.resize(size(1, 1536)).await.unwrap();
    assert_eq!((seen.has.memory, seen.wish), (large.memory, size(1, 1536)));
    peer.apply();
    assert_eq!(vmm.observe().await.unwrap().has, size(1, 1536));
}
