{{- define "ocs.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "ocs.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "ocs.labels" -}}
{{ include "ocs.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "ocs.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "ocs.name" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "ocs.tomlValue" -}}
{{- /* JSON's texts, numbers, booleans and lists of them are TOML's too. */ -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . -}}{{ printf "%.0f" . }}{{- else -}}{{ toJson . }}{{- end -}}
{{- else -}}
{{- toRawJson . -}}
{{- end -}}
{{- end -}}

{{- define "ocs.toml" -}}
{{- range $name, $value := .Values.config }}
{{ $name }} = {{ include "ocs.tomlValue" $value }}
{{- end }}
{{- with .Values.extraConfig }}

{{ . }}
{{- end }}
{{- end -}}
