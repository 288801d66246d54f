//! The scaling conversation on one session: what is to be said, and which requests are open. One place for each kind
//! of message, the newest wins: a host that does not read costs nothing but that. Each request resolves once; whatever
//! comes later is counted and has no effect.

use super::Notice;
use crate::scale::brain::Wanted;
use crate::scale::controllers::{Registry, Step};
use informant_wire::HostToGuest;
use informant_wire::frame::{self, EncodeError, kind};
use informant_wire::limits::MAX_SCALE_TEXT;
use informant_wire::scale::{
    Applied, AppliedOutcome, Controllers, Demand, DemandAnswer, DiskWanted, DownscaleAnswer, Epoch, RequestId,
    RoleAnswer, Suspend, Unregistered,
};

/// Frame, ids, codes and five numbers, and the text.
const MAX_ANSWER: usize = 96 + MAX_SCALE_TEXT;

/// A whole frame, written when it was known.
type Answer = heapless::Vec<u8, MAX_ANSWER>;

/// A message that is known, but not at this time, or not with this id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Skipped;

/// See the module.
#[derive(Debug)]
pub(super) struct Talk {
    next: RequestId,
    role: Option<(Step, Epoch)>,
    role_open: Option<(RequestId, Step, Epoch)>,
    demand: Option<Wanted>,
    demand_open: Option<RequestId>,
    /// The host's Downscale or Resized that has no last answer yet.
    command: Option<RequestId>,
    applied: Option<Applied>,
    answer: Answer,
    stale: Option<(RequestId, Epoch)>,
    list: Option<RequestId>,
    unregistered: Option<bool>,
    late: u64,
}

impl Talk {
    pub(super) const fn new() -> Self {
        Self {
            next: RequestId::FIRST_OF_GUEST,
            role: None,
            role_open: None,
            demand: None,
            demand_open: None,
            command: None,
            applied: None,
            answer: Answer::new(),
            stale: None,
            list: None,
            unregistered: None,
            late: 0,
        }
    }

    /// Takes a message of a host: what the session's owner must know of it, if anything.
    pub(super) fn take(&mut self, message: &HostToGuest<'_>) -> Result<Option<Notice>, Skipped> {
        let checked =
            |request: RequestId| (request.0 != 0 && request.0.is_multiple_of(2)).then_some(request).ok_or(Skipped);
        Ok(match message {
            HostToGuest::RoleAnswer(answer) => {
                let accepted = answer.accepted;
                self.take_role(answer).map(|(step, epoch)| Notice::Role { step, epoch, accepted })
            }
            HostToGuest::DemandAnswer(answer) => self.take_demand(answer).then_some(Notice::Demand(*answer)),
            HostToGuest::Resized(told) => checked(told.request).map(|_| Some(Notice::Resized(*told)))?,
            HostToGuest::Downscale(question) => {
                checked(question.request).map(|_| Some(Notice::Downscale(*question)))?
            }
            HostToGuest::ListControllers(question) => {
                self.list = Some(checked(question.request)?);
                None
            }
            _ => return Err(Skipped),
        })
    }

    /// What is to be said of a turn; one that was not said yet is not said any more.
    pub(super) fn tell(&mut self, step: Step, epoch: Epoch) {
        self.role = Some((step, epoch));
    }

    /// Asks for it. One that is open is not open any more.
    pub(super) fn ask(&mut self, wanted: Wanted) {
        (self.demand, self.demand_open) = (Some(wanted), None);
    }

    /// The open demand is not waited for any more.
    pub(super) fn unask(&mut self) {
        (self.demand, self.demand_open) = (None, None);
    }

    /// A command that is carried out; the one before gets no answer any more.
    pub(super) fn commanded(&mut self, request: RequestId) {
        self.void();
        self.command = Some(request);
    }

    /// The command that is open gets no answer.
    pub(super) fn void(&mut self) {
        (self.command, self.applied) = (None, None);
        self.answer.clear();
    }

    /// Whether what a command told has arrived. False: nobody waits for that.
    pub(super) fn applied(&mut self, applied: &Applied) -> bool {
        let waits = self.command == Some(applied.request);
        if waits {
            self.applied = Some(*applied);
            if applied.outcome != AppliedOutcome::NOT_YET {
                self.command = None;
            }
        }
        waits
    }

    /// The answer to a question. False: nobody waits for it.
    pub(super) fn answer(&mut self, answer: &DownscaleAnswer<'_>) -> bool {
        if self.command != Some(answer.request) {
            return false;
        }
        self.command = None;
        let mut frame = [0; MAX_ANSWER];
        // A line that is too long costs itself, not the answer.
        let text = if answer.text.len() > MAX_SCALE_TEXT { "" } else { answer.text };
        let length = DownscaleAnswer { text, ..*answer }.encode(&mut frame).unwrap_or_default();
        self.answer = Answer::from_slice(frame.get(..length).unwrap_or_default()).unwrap_or_default();
        length > 0
    }

    pub(super) fn stale(&mut self, request: RequestId, current: Epoch) {
        self.stale = Some((request, current));
    }

    pub(super) fn unregistered(&mut self, was_current: bool) {
        self.unregistered = Some(was_current);
    }

    /// Which step an answer is to; `None` if none is open with that id.
    fn take_role(&mut self, answer: &RoleAnswer) -> Option<(Step, Epoch)> {
        let open = self.role_open.take_if(|(request, ..)| *request == answer.request);
        self.late += u64::from(open.is_none());
        open.map(|(_, step, epoch)| (step, epoch))
    }

    /// Whether an answer is to the open demand, which it resolves.
    fn take_demand(&mut self, answer: &DemandAnswer) -> bool {
        let is_open = self.demand_open.take_if(|request| *request == answer.request).is_some();
        self.late += u64::from(!is_open);
        is_open
    }

    pub(super) fn note_late(&mut self) {
        self.late += 1;
    }

    pub(super) fn take_late(&mut self) -> u64 {
        std::mem::take(&mut self.late)
    }

    /// Writes what is to be said, one frame behind the other, as far as there is room; the bytes written. What was
    /// written is a request from then on.
    pub(super) fn fill(&mut self, room: &mut [u8], registry: &Registry, now_us: u64) -> usize {
        let mut filled = 0;
        // The first that has no room ends it.
        let _ = self.write(room, &mut filled, registry, now_us);
        filled
    }

    fn write(
        &mut self,
        room: &mut [u8],
        filled: &mut usize,
        registry: &Registry,
        now_us: u64,
    ) -> Result<(), EncodeError> {
        let mut put = |encode: &dyn Fn(&mut [u8]) -> Result<usize, EncodeError>| {
            *filled += encode(room.get_mut(*filled..).unwrap_or_default())?;
            Ok(())
        };
        if let Some((step, epoch)) = self.role {
            let request = self.next;
            let kind = if step == Step::Resume { kind::RESUME } else { kind::SUSPEND };
            put(&|out| of_turn(out, kind, request, epoch))?;
            self.next = request.next();
            (self.role, self.role_open) = (None, Some((request, step, epoch)));
        }
        if let Some(request) = self.list {
            put(&|out| Controllers { request, list: registry.list(now_us) }.encode(out))?;
            self.list = None;
        }
        if let Some((request, current)) = self.stale {
            put(&|out| of_turn(out, kind::STALE, request, current))?;
            self.stale = None;
        }
        if let Some(applied) = self.applied {
            put(&|out| applied.encode(out))?;
            self.applied = None;
        }
        if !self.answer.is_empty() {
            let answer = &self.answer;
            put(&|out| {
                out.get_mut(..answer.len()).ok_or(EncodeError)?.copy_from_slice(answer);
                Ok(answer.len())
            })?;
            self.answer.clear();
        }
        if let Some(wanted) = &self.demand {
            let request = self.next;
            put(&|out| demand(wanted, request).encode(out))?;
            self.next = request.next();
            (self.demand, self.demand_open) = (None, Some(request));
        }
        Ok(())
    }

    /// The answer to a controller's Bye, if it was not written yet.
    pub(super) fn fill_unregistered(&mut self, room: &mut [u8]) -> Option<Result<usize, EncodeError>> {
        let was_current = self.unregistered.take()?;
        Some(Unregistered { was_current }.encode(room))
    }
}

/// Suspend, Resume and Stale: one form, so one encoder.
fn of_turn(out: &mut [u8], kind: u8, request: RequestId, epoch: Epoch) -> Result<usize, EncodeError> {
    frame::encode(out, kind, &Suspend { request, epoch })
}

fn demand(wanted: &Wanted, request: RequestId) -> Demand<'_> {
    Demand {
        request,
        id: wanted.id,
        cpu: wanted.cpu,
        memory: wanted.memory,
        disk: wanted.disk.as_ref().map(|(mount, total)| DiskWanted { mount, total: *total }),
        urgency: wanted.urgency.min(100),
        reason: wanted.reason,
        expires_ms: wanted.expires_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::controllers::Key;
    use informant_wire::hello::Role;
    use informant_wire::id::ControllerId;
    use informant_wire::scale::{
        AppliedCause, DemandId, DemandOutcome, DemandReason, DownscaleOutcome, DownscaleReason, ListControllers, Seen,
    };
    use informant_wire::size::{Bytes, MilliCpu, Size};
    use informant_wire::{Decoder, GuestToHost};

    fn wanted() -> Wanted {
        Wanted {
            id: DemandId(u64::MAX),
            cpu: Some(MilliCpu(u32::MAX)),
            memory: Some(Bytes(u64::MAX)),
            disk: Some((heapless::Vec::from_slice(&[b'm'; 255]).unwrap(), Bytes(u64::MAX))),
            urgency: 255,
            reason: DemandReason(u16::MAX),
            expires_ms: u32::MAX,
        }
    }

    fn answer(request: u32, text: &str) -> DownscaleAnswer<'_> {
        DownscaleAnswer {
            request: RequestId(request),
            outcome: DownscaleOutcome(u16::MAX),
            reason: DownscaleReason(u16::MAX),
            usage: Bytes(u64::MAX),
            headroom: Bytes(u64::MAX),
            limit: Bytes(u64::MAX),
            retry_after_ms: u32::MAX,
            text,
        }
    }

    fn applied(request: u32, outcome: AppliedOutcome) -> Applied {
        Applied { request: RequestId(request), outcome, cause: AppliedCause::NONE, seen: Seen::default() }
    }

    fn registry() -> Registry {
        let mut registry = Registry::new();
        for key in 0..4 {
            registry.welcomed(Key(key), Role::CONTROLLER, ControllerId([0xff; 16]), &"n".repeat(64), 0);
        }
        registry
    }

    /// Everything that is written, with at most `room` bytes at once.
    fn said(talk: &mut Talk, room: usize) -> Vec<String> {
        let mut decoder = Decoder::new([0; 1024]);
        let mut said = Vec::new();
        loop {
            let mut out = vec![0; room];
            let length = talk.fill(&mut out, &registry(), u64::MAX);
            let mut input = &out[..length];
            while let Some(frame) = decoder.next(&mut input).unwrap() {
                let text = format!("{:?}", GuestToHost::decode(frame).unwrap());
                said.push(text.split('(').next().unwrap().to_owned());
            }
            if length == 0 {
                return said;
            }
        }
    }

    fn full() -> Talk {
        let mut talk = Talk::new();
        talk.tell(Step::Suspend, Epoch(u64::MAX));
        talk.list = Some(RequestId(u32::MAX - 1));
        talk.stale(RequestId(u32::MAX - 1), Epoch(u64::MAX));
        talk.commanded(RequestId(4));
        assert!(talk.answer(&answer(4, &"t".repeat(MAX_SCALE_TEXT))));
        talk.ask(wanted());
        talk
    }

    #[test]
    fn the_largest_messages_fit_the_least_room_and_none_is_lost() {
        let all = ["Suspend", "Controllers", "Stale", "DownscaleAnswer", "Demand"];
        assert_eq!(said(&mut full(), 1024), all);
        assert_eq!(said(&mut full(), 512), all);
        let mut talk = full();
        assert_eq!(talk.fill(&mut [0; 5], &registry(), 0), 0, "no room: it waits");
        assert_eq!(said(&mut talk, 1024), all);
    }

    #[test]
    fn as_501_ids_are_odd_and_each_request_has_its_own() {
        let mut talk = Talk::new();
        for turn in 0_u32..3 {
            talk.tell(Step::Resume, Epoch(turn.into()));
            talk.ask(wanted());
            said(&mut talk, 1024);
            let request = RequestId(turn * 4 + 1);
            assert_eq!(
                talk.take_role(&RoleAnswer { request, accepted: true }),
                Some((Step::Resume, Epoch(turn.into())))
            );
        }
    }

    #[test]
    fn as_484_an_answer_resolves_its_request_once_and_a_late_one_has_no_effect() {
        let mut talk = Talk::new();
        let role = |request| RoleAnswer { request: RequestId(request), accepted: true };
        let demand = |request| DemandAnswer {
            request: RequestId(request),
            outcome: DemandOutcome::GRANTED,
            granted: Size::default(),
            retry_after_ms: 0,
        };
        assert_eq!(talk.take_role(&role(1)), None, "nothing was asked");
        talk.tell(Step::Resume, Epoch(1));
        assert_eq!(talk.take_role(&role(1)), None, "nothing was said yet");
        talk.ask(wanted());
        said(&mut talk, 1024);
        assert_eq!(talk.take_role(&role(3)), None, "of the demand");
        assert!(!talk.take_demand(&demand(1)) && talk.take_demand(&demand(3)));
        assert!(!talk.take_demand(&demand(3)), "once");
        assert_eq!(talk.take_role(&role(1)), Some((Step::Resume, Epoch(1))));
        assert_eq!(talk.take_role(&role(1)), None, "once");
        talk.ask(wanted());
        said(&mut talk, 1024);
        talk.unask();
        assert!(!talk.take_demand(&demand(5)), "late");
        assert_eq!((talk.take_late(), talk.take_late()), (7, 0));
    }

    #[test]
    fn a_command_with_an_id_of_this_side_is_skipped() {
        let mut talk = Talk::new();
        let list = |request| HostToGuest::ListControllers(ListControllers { request: RequestId(request) });
        for request in [0, 1, 3, u32::MAX] {
            assert_eq!(talk.take(&list(request)), Err(Skipped));
        }
        assert_eq!(said(&mut talk, 1024), [""; 0]);
        assert_eq!(talk.take(&list(2)), Ok(None));
        assert_eq!(said(&mut talk, 1024), ["Controllers"]);
    }

    #[test]
    fn a_newer_command_takes_the_place_of_the_one_before() {
        let mut talk = Talk::new();
        talk.commanded(RequestId(2));
        assert!(talk.answer(&answer(2, "")));
        talk.commanded(RequestId(4));
        assert!(!talk.answer(&answer(2, "")));
        assert_eq!(said(&mut talk, 1024), [""; 0], "the answer to the first was not sent yet, and is not any more");
        assert!(
            talk.applied(&applied(4, AppliedOutcome::NOT_YET)) && talk.applied(&applied(4, AppliedOutcome::APPLIED))
        );
        assert_eq!(said(&mut talk, 1024), ["Applied"], "the newest state of it");
        assert!(!talk.applied(&applied(4, AppliedOutcome::FAILED)), "that was the last");
    }

    #[test]
    fn a_turn_that_was_not_told_yet_is_not_told_when_it_is_over() {
        let mut talk = Talk::new();
        talk.tell(Step::Resume, Epoch(1));
        talk.tell(Step::Withdraw, Epoch(1));
        assert_eq!(said(&mut talk, 1024), ["Suspend"]);
    }
}
