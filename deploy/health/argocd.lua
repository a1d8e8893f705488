-- Health of an InferenceDeployment for Argo CD: resource.customizations.health.kvgate.io_InferenceDeployment in argocd-cm
local status = obj.status or {}
if status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "kvgate has not looked at this generation yet"}
end
local found = {}
for _, condition in ipairs(status.conditions or {}) do
  found[condition.type] = condition
end
if found.Stalled ~= nil and found.Stalled.status == "True" then
  return {status = "Degraded", message = found.Stalled.reason .. ": " .. found.Stalled.message}
end
if found.Ready ~= nil and found.Ready.status == "True" then
  return {status = "Healthy", message = found.Ready.message}
end
return {status = "Progressing", message = found.Ready ~= nil and found.Ready.message or ""}
