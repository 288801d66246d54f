//! Readings of the scaling messages. Most are the fields by name, as serde has them.

use super::{hex, id, int, text, unhex};
use informant_wire::frame::EncodeError;
use informant_wire::hello::Role;
use informant_wire::id::ControllerId;
use informant_wire::scale::{
    Applied, Controller, Controllers, Demand, DemandAnswer, DemandId, DemandReason, DiskWanted, Downscale,
    DownscaleAnswer, Epoch, ListControllers, RequestId, Resized, Resume, RoleAnswer, Stale, Suspend, Unregistered,
};
use informant_wire::size::{Bytes, MilliCpu};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(super) fn reading(name: &str, message: &impl Serialize) -> Value {
    let mut reading = serde_json::to_value(message).unwrap();
    reading["type"] = json!(name);
    reading
}

pub(super) fn demand_reading(m: &Demand<'_>) -> Value {
    json!({"type": "demand", "request": m.request.0, "id": m.id.0, "cpu": m.cpu.map(|cpu| cpu.0),
        "memory": m.memory.map(|memory| memory.0),
        "disk": m.disk.map(|disk| json!({"mount": hex(disk.mount), "total": disk.total.0})),
        "urgency": m.urgency, "reason": m.reason.0, "expires_ms": m.expires_ms})
}

pub(super) fn controllers_reading(m: &Controllers<'_>) -> Value {
    let list: Vec<_> = m
        .list
        .iter()
        .map(|c| {
            json!({"id": hex(&c.id.0), "name": c.name, "role": c.role.0, "current": c.current, "epoch": c.epoch.0,
                "heard_ms": c.heard_ms})
        })
        .collect();
    json!({"type": "controllers", "request": m.request.0, "list": list})
}

fn message<'a, T: Deserialize<'a>>(m: &'a Value) -> T {
    T::deserialize(m).unwrap()
}

pub(super) fn encode(name: &str, m: &Value, to: &mut [u8]) -> Result<usize, EncodeError> {
    match name {
        "suspend" => message::<Suspend>(m).encode(to),
        "resume" => message::<Resume>(m).encode(to),
        "applied" => message::<Applied>(m).encode(to),
        "downscale_answer" => message::<DownscaleAnswer<'_>>(m).encode(to),
        "stale" => message::<Stale>(m).encode(to),
        "unregistered" => message::<Unregistered>(m).encode(to),
        "role_answer" => message::<RoleAnswer>(m).encode(to),
        "demand_answer" => message::<DemandAnswer>(m).encode(to),
        "resized" => message::<Resized>(m).encode(to),
        "downscale" => message::<Downscale>(m).encode(to),
        "list_controllers" => message::<ListControllers>(m).encode(to),
        "demand" => {
            let mount = m["disk"].as_object().map(|disk| unhex(text(&disk["mount"]))).unwrap_or_default();
            let disk =
                m["disk"].as_object().map(|disk| DiskWanted { mount: &mount, total: Bytes(int(&disk["total"])) });
            Demand {
                request: RequestId(int(&m["request"])),
                id: DemandId(int(&m["id"])),
                cpu: m["cpu"].as_u64().map(|cpu| MilliCpu(cpu.try_into().unwrap())),
                memory: m["memory"].as_u64().map(Bytes),
                disk,
                urgency: int(&m["urgency"]),
                reason: DemandReason(int(&m["reason"])),
                expires_ms: int(&m["expires_ms"]),
            }
            .encode(to)
        }
        "controllers" => {
            let controller = |c: &'_ Value| Controller {
                id: ControllerId(id(&c["id"])),
                name: "",
                role: Role(int(&c["role"])),
                current: c["current"].as_bool().unwrap(),
                epoch: Epoch(int(&c["epoch"])),
                heard_ms: int(&c["heard_ms"]),
            };
            let list = m["list"].as_array().unwrap();
            let list = list.iter().map(|c| Controller { name: text(&c["name"]), ..controller(c) }).collect();
            Controllers { request: RequestId(int(&m["request"])), list }.encode(to)
        }
        other => panic!("no such type: {other}"),
    }
}
