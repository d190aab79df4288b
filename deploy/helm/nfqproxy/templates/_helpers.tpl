{{- define "nfqproxy.labels" -}}
app.kubernetes.io/name: nfqproxy
{{- if not .Values.plain }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The metadata of an object: a list of the context and the name; with "cluster" it has no namespace. */}}
{{- define "nfqproxy.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 }}
{{- if eq (len .) 2 }}
namespace: {{ $root.Release.Namespace }}
{{- end }}
labels:
  {{- include "nfqproxy.labels" $root | nindent 2 }}
{{- with $root.Values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "nfqproxy.image" -}}
{{- with .Values.image -}}
{{- .repository }}
{{- if or .tag (not .digest) }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- with .digest }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- define "nfqproxy.securityContext" -}}
runAsUser: 0
runAsGroup: 0
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  add: [NET_ADMIN]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /* The security context of the containers that read the flow API. */}}
{{- define "nfqproxy.unprivileged" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /* Where the metrics are, unless the configuration says it. */}}
{{- define "nfqproxy.metrics" -}}
{{- .Values.metrics.bindAddress | default (ternary "127.0.0.1:10252" "" (eq .Values.mode "observe")) -}}
{{- end }}

{{- /* The port of an address IP:PORT, or 0. */}}
{{- define "nfqproxy.port" -}}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" .) | default "0" -}}
{{- end }}
