//! The real agent's loop on a thread of this process, with a part that scales which does what the test says.

use crate::agent::Place;
use informant_guest::args::{HostLink, Run};
use informant_guest::clock::Timer;
use informant_guest::collect::Sensors;
use informant_guest::link::Address;
use informant_guest::local::desk::{Desk, Standing};
use informant_guest::local::tally::Verdict;
use informant_guest::scale::brain::{Brain, Mind, Wanted};
use informant_guest::{reactor, run};
use informant_wire::scale::{Applied, Demand, DemandAnswer, DemandReason, Downscale, DownscaleAnswer, Resized};
use informant_wire::size::{Bytes, Size};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What came to the part that scales.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Verdict(Verdict),
    Demand(Option<Bytes>, DemandReason),
    Withdrawn,
}

#[derive(Debug)]
struct Script {
    questions: Receiver<(Size, Size)>,
    came: Sender<Came>,
    standing: Arc<Mutex<Standing>>,
}

/// No host is there to hear of it.
impl Brain for Script {
    fn demand(&mut self, _: u64) -> Option<Wanted> {
        None
    }
    fn demand_due_us(&self) -> u64 {
        u64::MAX
    }
    fn demand_answered(&mut self, _: &DemandAnswer, _: u64) {}
    fn demand_unanswered(&mut self, _: u64) {}
    fn downscale(&mut self, _: &Downscale, _: u64) {}
    fn downscale_answer(&mut self, _: u64) -> Option<DownscaleAnswer<'_>> {
        None
    }
    fn resized(&mut self, _: &Resized, _: u64) {}
    fn applied(&mut self, _: u64) -> Option<Applied> {
        None
    }
    fn current_gone(&mut self, _: u64) {}
}

impl Mind for Script {
    fn poll(&mut self, _: &mut Context<'_>, _: u64) {}
    fn observe(&mut self, _: &Sensors) {}
    fn deadline_us(&self) -> u64 {
        u64::MAX
    }
}

impl Desk for Script {
    fn take_question(&mut self) -> Option<(Size, Size)> {
        self.questions.try_recv().ok()
    }
    fn verdict(&mut self, verdict: &Verdict, _: u64) {
        let _ = self.came.send(Came::Verdict(verdict.clone()));
    }
    fn local_demand(&mut self, _: u32, demand: &Demand<'_>, _: u64) {
        let _ = self.came.send(Came::Demand(demand.memory, demand.reason));
    }
    fn withdraw_local(&mut self, _: u32, _: u64) {
        let _ = self.came.send(Came::Withdrawn);
    }
    fn demand_state(&self, _: u32) -> Standing {
        *self.standing.lock().unwrap()
    }
}

pub(crate) struct Inside {
    pub(crate) socket: PathBuf,
    pub(crate) advisors: PathBuf,
    pub(crate) standing: Arc<Mutex<Standing>>,
    questions: Sender<(Size, Size)>,
    came: Receiver<Came>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Inside {
    /// An agent that dials `host.sock`; it looks for questions at each sample.
    pub(crate) fn start(place: &Place, interval: Duration) -> Self {
        let (questions, asked) = channel();
        let (came_in, came) = channel();
        let standing = Arc::new(Mutex::new(Standing::PENDING));
        let stop = Arc::new(AtomicBool::new(false));
        let (socket, advisors) = (place.path("agent.sock"), place.path("advisors.d"));
        std::fs::create_dir_all(&advisors).unwrap();
        std::fs::set_permissions(&advisors, std::fs::Permissions::from_mode(0o755)).unwrap();
        let options = Run {
            host: HostLink::Connect(Address::Unix(place.path("host.sock"))),
            control: None,
            root: PathBuf::from("/"),
            interval,
            cgroup: None,
            tripwire: false,
            clear_memory_high: false,
            thaw: false,
            name: Some("vm".to_owned()),
            state: place.path("state"),
            local: Some(socket.clone()),
            advisors: advisors.clone(),
            log: tracing::level_filters::LevelFilter::INFO,
        };
        let (ends, desk) =
            (Arc::clone(&stop), Script { questions: asked, came: came_in, standing: Arc::clone(&standing) });
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime.block_on(async {
                let none = SignalFd::with_flags(&SigSet::empty(), SfdFlags::SFD_NONBLOCK).unwrap();
                let mut agent = run::build(&options, Timer::new().unwrap(), reactor::register(none).unwrap());
                agent.mind = Box::new(desk);
                std::future::poll_fn(|cx| match agent.poll(cx) {
                    Poll::Pending if !ends.load(Ordering::Relaxed) => Poll::Pending,
                    _ => Poll::Ready(()),
                })
                .await;
            });
        });
        let deadline = Instant::now() + crate::host::PATIENCE;
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < deadline, "the agent hears");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { socket, advisors, standing, questions, came, stop, thread: Some(thread) }
    }

    pub(crate) fn ask(&self, present: Size, wanted: Size) {
        self.questions.send((present, wanted)).unwrap();
    }

    pub(crate) fn came(&self) -> Came {
        self.came.recv_timeout(crate::host::PATIENCE).expect("something comes to the part that scales")
    }

    pub(crate) fn has_come(&self) -> Option<Came> {
        self.came.try_recv().ok()
    }

    pub(crate) fn verdict(&self) -> Verdict {
        match self.came() {
            Came::Verdict(verdict) => verdict,
            other => panic!("not a verdict: {other:?}"),
        }
    }

    /// Puts an executable script into the directory of advisors.
    pub(crate) fn program(&self, name: &str, script: &str) -> PathBuf {
        let path = self.advisors.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}
