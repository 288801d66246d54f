//! Several hosts that may decide: the turns that the agent gives them, and what becomes of their commands.

use crate::agent::{Agent, Place};
use crate::host::{Host, Peer, Said, SeenController};
use informant_wire::hello::{Capabilities, Role};
use informant_wire::host_to_guest::ByeReason;
use informant_wire::limits::{RESUME_DEADLINE_S, SUSPEND_DEADLINE_S};
use informant_wire::scale::{Downscale, Epoch, RequestId, Resized, Stale};
use informant_wire::size::Size;
use std::path::PathBuf;
use std::time::{Duration, Instant};

struct Setting {
    _agent: Agent,
    control: PathBuf,
    /// The agent's own host, which decides in turn 1.
    own: Peer,
}

fn setting(place: &Place, host: &Host) -> Setting {
    let control = place.path("control.sock");
    let agent = place.agent(&["--control", &format!("unix:{}", control.display())]);
    let mut own = host.accept();
    assert!(own.hello().capabilities.has(Capabilities::SCALING));
    own.welcome_named("own", Role::CONTROLLER, 0);
    assert_eq!(own.take_turn(), Epoch(1));
    own.ack(1, 0);
    Setting { _agent: agent, control, own }
}

impl Setting {
    /// A further host through the control door.
    fn join(&self, name: &str, role: Role) -> Peer {
        let mut peer = Peer::connect(&self.control);
        peer.hello();
        peer.welcome_named(name, role, 0);
        peer
    }

    /// A second host decides, in turn 2.
    fn second(&mut self) -> Peer {
        let mut second = self.join("second", Role::CONTROLLER);
        let (request, epoch) = self.own.suspend();
        assert_eq!(epoch, Epoch(1));
        self.own.role(request, true);
        assert_eq!(second.take_turn(), Epoch(2));
        second
    }
}

fn downscale(peer: &mut Peer, request: u32, epoch: u64) {
    let size = Size::default();
    let question = Downscale {
        request: RequestId(request),
        epoch: Epoch(epoch),
        present: size,
        wanted: size,
        forced: false,
        within_ms: 1000,
    };
    peer.send(|out| question.encode(out));
}

/// Whether a command is carried out; if not, the turn that is told.
fn answer(peer: &mut Peer, request: u32) -> Result<(), Epoch> {
    let request = RequestId(request);
    peer.until(|said| match said {
        Said::Stale(Stale { request: answered, current }) if answered == request => Some(Err(current)),
        Said::DownscaleAnswer(answered, ..) if answered == request => Some(Ok(())),
        Said::Stale(_) | Said::DownscaleAnswer(..) => panic!("{said:?} answers nothing that was asked"),
        _ => None,
    })
}

fn host(name: &str, role: Role, current: bool, epoch: u64) -> SeenController {
    (name.to_owned(), role.0, current, epoch)
}

#[test]
fn as_24_a_second_controller_decides_only_after_the_first_has_stopped() {
    let place = Place::new();
    let listener = Host::new(&place);
    let mut setting = setting(&place, &listener);
    let mut second = setting.join("second", Role::CONTROLLER);
    let (request, epoch) = setting.own.suspend();
    assert_eq!(epoch, Epoch(1));
    // It has not stopped yet: what it asks is answered, and the second hears of no turn.
    downscale(&mut setting.own, 2, 1);
    assert_eq!(answer(&mut setting.own, 2), Ok(()));
    downscale(&mut second, 2, 1);
    assert_eq!(answer(&mut second, 2), Err(Epoch(1)));
    let list = [host("own", Role::CONTROLLER, true, 1), host("second", Role::CONTROLLER, false, 0)];
    assert_eq!(second.controllers(4), list);
    setting.own.role(request, true);
    assert_eq!(second.take_turn(), Epoch(2));
    // The first is fenced, the second may.
    downscale(&mut setting.own, 4, 1);
    assert_eq!(answer(&mut setting.own, 4), Err(Epoch(2)));
    downscale(&mut second, 6, 2);
    assert_eq!(answer(&mut second, 6), Ok(()));
    downscale(&mut second, 8, 1);
    assert_eq!(answer(&mut second, 8), Err(Epoch(2)), "also its own session, with another turn");
    let told = Resized {
        request: RequestId(10),
        epoch: Epoch(9),
        was: Size::default(),
        now: Size::default(),
        within_ms: 1000,
    };
    second.send(|out| told.encode(out));
    assert_eq!(answer(&mut second, 10), Err(Epoch(2)));
    let list = [host("own", Role::CONTROLLER, false, 1), host("second", Role::CONTROLLER, true, 2)];
    assert_eq!(setting.own.controllers(6), list);
}

#[test]
fn as_114_one_that_does_not_stop_is_fenced_after_five_seconds() {
    let place = Place::new();
    let listener = Host::new(&place);
    let mut setting = setting(&place, &listener);
    let mut second = setting.join("second", Role::CONTROLLER);
    let (request, _) = setting.own.suspend();
    let since = Instant::now();
    let (turn, epoch) = second.resume();
    assert_eq!(epoch, Epoch(2));
    assert!(since.elapsed() > Duration::from_secs(SUSPEND_DEADLINE_S - 1), "it had its time");
    second.role(turn, true);
    downscale(&mut setting.own, 2, 1);
    assert_eq!(answer(&mut setting.own, 2), Err(Epoch(2)));
    // Its late answer changes nothing.
    setting.own.role(request, true);
    assert!(second.controllers(2)[1].2 && !setting.own.controllers(4)[0].2);
}

#[test]
fn a_failed_switch_gives_the_turn_back() {
    for how in ["refuses", "ends", "says bye", "is silent"] {
        let place = Place::new();
        let listener = Host::new(&place);
        let mut setting = setting(&place, &listener);
        let mut second = setting.join("second", Role::CONTROLLER);
        let (request, _) = setting.own.suspend();
        setting.own.role(request, true);
        let (turn, epoch) = second.resume();
        assert_eq!(epoch, Epoch(2));
        match how {
            "refuses" => assert!(second.role(turn, false)),
            "ends" => drop(second),
            "says bye" => {
                second.bye(ByeReason::STOPPING);
                assert!(!second.until(|said| if let Said::Unregistered(was) = said { Some(was) } else { None }));
            }
            _ => {
                // It is told that its turn is over, should it take it up late; and then it has none.
                assert_eq!(second.suspend().1, Epoch(2));
                second.role(turn, true);
                downscale(&mut second, 2, 2);
                assert_eq!(answer(&mut second, 2), Err(Epoch(3)));
            }
        }
        assert_eq!(setting.own.take_turn(), Epoch(3), "the second {how}");
        downscale(&mut setting.own, 2, 3);
        assert_eq!(answer(&mut setting.own, 2), Ok(()), "the second {how}");
        downscale(&mut setting.own, 4, 1);
        assert_eq!(answer(&mut setting.own, 4), Err(Epoch(3)), "its old turn is not its new one");
    }
}

#[test]
fn as_163_a_single_controller_that_is_silent_is_asked_again() {
    let place = Place::new();
    let listener = Host::new(&place);
    let _agent = place.agent(&[]);
    let mut own = listener.session(0);
    let since = Instant::now();
    let (first, _) = own.resume();
    assert_eq!(own.suspend().1, Epoch(1));
    assert!(since.elapsed() >= Duration::from_secs(RESUME_DEADLINE_S) / 2);
    // Late: it decides not by this, but by the next turn.
    own.role(first, true);
    assert!(!own.controllers(2)[0].2);
    assert_eq!(own.take_turn(), Epoch(2));
    assert!(own.controllers(4)[0].2);
}

#[test]
fn a_bye_is_answered_with_whether_it_decided_and_the_other_takes_over() {
    let place = Place::new();
    let listener = Host::new(&place);
    let mut setting = setting(&place, &listener);
    let mut second = setting.second();
    let unregistered = |peer: &mut Peer| {
        peer.bye(ByeReason::STOPPING);
        let was = peer.until(|said| if let Said::Unregistered(was) = said { Some(was) } else { None });
        assert_eq!(peer.next(), None, "the last word");
        was
    };
    assert!(unregistered(&mut second));
    assert_eq!(setting.own.take_turn(), Epoch(3));
    let mut third = setting.join("third", Role::CONTROLLER);
    let (request, _) = setting.own.suspend();
    setting.own.role(request, true);
    assert_eq!(third.take_turn(), Epoch(4));
    // The agent's own host leaves and is dialled again: it is new, and wins again.
    assert!(!unregistered(&mut setting.own));
    let mut own = listener.accept();
    own.hello();
    own.welcome_named("own", Role::CONTROLLER, 0);
    let (request, _) = third.suspend();
    third.role(request, true);
    assert_eq!(own.take_turn(), Epoch(5));
}

#[test]
fn an_observer_may_list_and_nothing_more() {
    let place = Place::new();
    let listener = Host::new(&place);
    let setting = setting(&place, &listener);
    let mut observer = setting.join("reader", Role::OBSERVER);
    let list = [host("own", Role::CONTROLLER, true, 1), host("reader", Role::OBSERVER, false, 0)];
    assert_eq!(observer.controllers(2), list);
    downscale(&mut observer, 4, 1);
    assert_eq!(answer(&mut observer, 4), Err(Epoch(1)), "not even with the turn of now");
    observer.bye(ByeReason::STOPPING);
    while let Some(said) = observer.next() {
        assert!(!matches!(said, Said::Unregistered(_) | Said::Resume(..)), "{said:?}");
    }
}

#[test]
fn as_217_answers_to_nothing_change_nothing() {
    let place = Place::new();
    let listener = Host::new(&place);
    let mut setting = setting(&place, &listener);
    for request in [0, 1, 2, 3, 77, u32::MAX] {
        setting.own.role(RequestId(request), false);
    }
    assert_eq!(setting.own.controllers(2), [host("own", Role::CONTROLLER, true, 1)]);
    downscale(&mut setting.own, 4, 1);
    assert_eq!(answer(&mut setting.own, 4), Ok(()));
}
